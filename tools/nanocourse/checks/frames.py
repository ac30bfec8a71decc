"""A worker's messages, read by a thread, so that waiting with a time limit works the same on every system."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from nanocourse.checks import wire
from nanocourse.checks.clock import Clock

Frame = tuple[dict[str, Any], bytes]
WAITING = 4  # frames that a worker may send ahead before it has to wait


class Frames:
    """Messages from a stream, until `stop` or its end."""

    def __init__(self, stream: IO[bytes], bounds: wire.Bounds) -> None:
        self._stream, self._bounds, self._stopped = stream, bounds, False
        self._read: queue.Queue[Frame | str | None] = queue.Queue(WAITING)
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Stop reading."""
        self._stopped = True

    def wait(self, clock: Clock, glance_s: float, problem: Callable[[], str]) -> tuple[Frame | str | None, bool]:
        """The next message and True. The message is None at the end of the stream, and a sentence if it was malformed.

        False instead of True: the clock's limit is used up (None), or `problem` reported something (its sentence).
        """
        if clock.stale(glance_s) and clock.look():  # a worker that sends faster than it is read gets no extra time
            return None, False
        look_at = time.monotonic() + glance_s
        while True:
            with contextlib.suppress(queue.Empty):
                return self._read.get(timeout=max(look_at - time.monotonic(), 0.001)), True
            if self._unread():
                clock.resume()  # it has answered and sleeps: on a busy machine it is us who are late
            if clock.look(glance_s):
                return None, False
            found = problem()
            if found:
                return found, False
            look_at = time.monotonic() + glance_s

    def _unread(self) -> bool:
        """Whether the stream holds bytes that the thread has not come to read."""
        if os.name != "posix":
            return False
        with contextlib.suppress(OSError, ValueError):  # it was closed
            return bool(select.select([self._stream], [], [], 0)[0])
        return False

    def _run(self) -> None:
        try:
            while (frame := wire.receive(self._stream, self._bounds)) is not None:
                self._hand_over(frame)
            self._hand_over(None)
        except wire.WireError as error:
            self._hand_over(str(error))
        except (OSError, ValueError):
            self._hand_over(None)
        finally:
            with contextlib.suppress(OSError):
                self._stream.close()

    def _hand_over(self, frame: Frame | str | None) -> None:
        """Put a message into the queue. A worker that floods the queue has to wait; nothing waits for a dead worker."""
        while not self._stopped:
            with contextlib.suppress(queue.Full):
                self._read.put(frame, timeout=1.0)
                return
