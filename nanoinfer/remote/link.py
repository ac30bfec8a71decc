"""Calls from one process to another, over a connection between two of ours; nobody waits for an answer.

Connections pickle: see `parallel.processes` for why that is allowed here. A thread sends all that waits as one message.
So a busy reader gets fewer, longer messages, and both sides pay once a message and not once a token.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NoReturn

from nanoinfer.parallel.processes import die


@dataclass(frozen=True)
class Call:
    """What one process asks of the other: to call this method of the object that obeys there."""

    method: str
    args: tuple[Any, ...]


def received(connection: Connection) -> Iterator[Call]:
    """The calls that the other end has sent, one by one, until it closes or its process is gone."""
    with suppress(EOFError, OSError):
        while True:
            for each in connection.recv():
                if each is None:
                    return
                yield each


def obey(connection: Connection, owner: Any) -> None:
    """Call what the other end asks for, until it closes or its process is gone."""
    for call in received(connection):
        getattr(owner, call.method)(*call.args)


def live(connection: Connection, make: Callable[[Connection], Any]) -> NoReturn:
    """A whole process: what `make` makes obeys, as long as the parent has not closed the connection."""
    try:
        obey(connection, make(connection))
    except BaseException as error:
        die(error)
    os._exit(0)  # at once, whatever runs: nobody will hear of it


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
        self.connection, self._failed = connection, failed
        self._waiting: SimpleQueue[Call | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="nanoinfer-send", daemon=True)
        self._thread.start()

    def call(self, method: str, *args: Any) -> None:
        """Let the other end call this; in any thread, and in a finalizer too."""
        self._waiting.put(Call(method, args))

    def close(self) -> None:
        """The other end obeys what was sent until now, and nothing after that."""
        self._waiting.put(None)

    def _run(self) -> None:
        sent: list[Any] = [...]
        try:
            while sent[-1] is not None:
                sent = drained(self._waiting)
                self.connection.send(sent)
        except OSError:  # nobody reads it: whoever waits for an answer hears of that
            pass
        except Exception as error:
            self._failed(error)
