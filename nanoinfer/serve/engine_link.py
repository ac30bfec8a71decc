"""Messages between the server's process and the engine's, over two pipes. Chapter 5.

Who sends never waits, however slow the other side is: a thread takes all that has been sent by then as one message. So
a busy reader gets fewer, longer messages, and each side pays for its pipe once a message and not once a token.
"""

from __future__ import annotations

import pickle
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from struct import Struct
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

from nanoinfer.engine.stats import Gauges, Stats

if TYPE_CHECKING:
    from pathlib import Path

    from nanoinfer.records import FinishReason

SIZE = Struct("!Q")  # of a message in bytes, ahead of it


class Link:
    """One end of the pipes.

    pack: makes the message of what was sent since the last one. failed: called, in the sending thread, with what went
    wrong there, unless it is that nobody reads any more. rest: seconds from one message to the next, at least; it is
    asked for each.
    """

    def __init__(
        self,
        source: IO[bytes],
        target: IO[bytes],
        failed: Callable[[Exception], object],
        pack: Callable[[list[Any]], Any] = list,
        rest: Callable[[], float] = float,
    ) -> None:
        self._source, self._target, self._pack, self._failed, self._rest = source, target, pack, failed, rest
        self._sent = 0.0  # when the last message was
        self._waiting: SimpleQueue[Any] = SimpleQueue()
        self.send = self._waiting.put  # anything but None; in any thread, and in a finalizer too
        Thread(target=self._run, name="nanoinfer-send", daemon=True).start()

    def receive(self) -> Any:
        """The next message. EOFError where the other end is gone."""
        head = self._source.read(SIZE.size)
        size = SIZE.unpack(head)[0] if len(head) == SIZE.size else 1
        body = self._source.read(size)
        if len(body) < size:
            self._source.close()
            raise EOFError
        return pickle.loads(body)

    def close(self) -> None:
        """The other end reads what was sent until now, and then that this one is gone."""
        self._waiting.put(None)

    def _run(self) -> None:
        try:
            while self._send(self._taken()):
                pass
        except OSError:  # nobody reads it: whoever waits for an answer hears of that
            pass
        except Exception as error:
            self._failed(error)
        finally:
            with suppress(OSError):
                self._target.close()

    def _taken(self) -> list[Any]:
        """What waits, at least one."""
        taken = [self._waiting.get()]
        if (left := self._sent + self._rest() - time.perf_counter()) > 0:
            time.sleep(left)
        with suppress(Empty):
            while taken[-1] is not None:
                taken.append(self._waiting.get_nowait())
        return taken

    def _send(self, taken: list[Any]) -> bool:
        """Whether more may follow."""
        sent = taken if taken[-1] is not None else taken[:-1]
        if sent:
            body = pickle.dumps(self._pack(sent), pickle.HIGHEST_PROTOCOL)
            self._target.write(SIZE.pack(len(body)) + body)
            self._target.flush()
            self._sent = time.perf_counter()
        return sent is taken


@dataclass(frozen=True)
class Start:
    """To the engine: make it. The first message; settings are those of `EngineConfig`."""

    model: str | Path | None
    revision: str | None
    settings: dict[str, Any]


# What few rows have: number, finish reason, what failed in it alone, logprobs of its new tokens, of its prompt's where
# these are its first, and the time of its end where it has no token.
Extra = tuple[int, "FinishReason | None", "str | None", list[list[float]], list[list[float]], list[float]]


@dataclass
class News:
    """From the engine: what is new since the last message.

    numbers, counts: rows that have news, and how many tokens each has got; tokens, times: these, row by row. others:
    what else was posted, in order. failure: of a step, the exception and its traceback.
    """

    numbers: array[int] = field(default_factory=lambda: array("Q"))
    counts: array[int] = field(default_factory=lambda: array("I"))
    tokens: array[int] = field(default_factory=lambda: array("I"))
    times: array[float] = field(default_factory=lambda: array("d"))  # as time.perf_counter() here and there
    extras: list[Extra] = field(default_factory=list)
    begun: list[tuple[int, float]] = field(default_factory=list)  # rows whose first news these are, and `Row.began`
    others: list[tuple[Any, ...]] = field(default_factory=list)
    failure: tuple[str, str] | None = None
    stats: Stats = field(default_factory=Stats)
    gauges: Gauges = field(default_factory=Gauges)
