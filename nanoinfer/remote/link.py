"""Sending without waiting, over a connection between two of our processes.

Connections pickle: see `parallel.processes` for why that is allowed here. A thread sends all that waits as one message.
So a busy reader gets fewer, longer messages, and both sides pay once a message and not once a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any


def received(connection: Connection) -> Iterator[Any]:
    """What the other end has sent, one by one, until it closes or its process is gone."""
    with suppress(EOFError, OSError):
        while True:
            for each in connection.recv():
                if each is None:
                    return
                yield each


def drained(queue: SimpleQueue[Any], seconds: float | None = None) -> list[Any]:
    """All that waits in a queue, once there is anything; nothing where nothing comes within so many seconds."""
    found = []
    with suppress(Empty):
        found.append(queue.get(timeout=seconds))
        while True:
            found.append(queue.get_nowait())
    return found


class Link:
    """One end of a connection. failed: called, in the sending thread, with what cannot be sent."""

    def __init__(self, connection: Connection, failed: Callable[[Exception], object]) -> None:
        self._connection, self._failed = connection, failed
        self._waiting: SimpleQueue[Any] = SimpleQueue()
        self.send = self._waiting.put  # in any thread, and in a finalizer too
        self._thread = Thread(target=self._run, name="nanoinfer-send", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        return received(self._connection)

    def close(self) -> None:
        """The other end reads what was sent until now, and nothing after that."""
        self.send(None)

    def _run(self) -> None:
        sent = [...]
        try:
            while sent[-1] is not None:
                sent = drained(self._waiting)
                self._connection.send(sent)
        except OSError:  # nobody reads it: whoever waits for an answer hears of that
            pass
        except Exception as error:
            self._failed(error)
