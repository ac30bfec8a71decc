"""The process in which facts become the records that watchers read: the server's own answers requests meanwhile.

It ends with the one that made it. Texts of prompts and tokens are made here, where they are to be shown.
"""

from __future__ import annotations

import json
from collections import deque
from multiprocessing.connection import Connection

from nanoinfer.parallel.processes import die
from nanoinfer.remote.link import Link, live
from nanoinfer.serve.events import Event, Events
from nanoinfer.text.tokenizer import gpt2_tokenizer

KEPT = 256  # records that are kept for those who read slowly
JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def main(connection: Connection) -> None:
    """The process: as long as the server has not closed the connection."""
    live(connection, lambda connection: Records(Link(connection, die)))


class Records:
    """Makes records, and answers who asks for the next ones. A `Source` calls its methods."""

    def __init__(self, link: Link) -> None:
        self._link, self._made, self._newest = link, 0, deque[bytes](maxlen=KEPT)
        self._waiting: list[int] = []  # who has read all

    def begin(self, texts: bool) -> None:
        """The first call: whether texts are shown."""
        self._events = Events(gpt2_tokenizer() if texts else None)

    def take(self, facts: Event) -> None:
        """Make a record, for which all wait who have read the others."""
        self._newest.append(encoded(self._events.take(facts)))
        self._made += 1
        waiting, self._waiting = self._waiting, []
        self._link.call("answer", waiting, self._made, self._newest[-1])

    def ask(self, number: int, read: int) -> None:
        """Answer this number with what has come since so many records; with a keyframe, where it is no longer kept."""
        left = self._made - read
        if not left:
            self._waiting.append(number)
        elif left <= len(self._newest):
            self._link.call("answer", [number], self._made, b"".join([*self._newest][-left:]))
        else:
            keyframe = self._events.keyframe(left if read else 0)  # who comes late has missed nothing
            self._link.call("answer", [number], self._made, encoded(keyframe))


def encoded(event: Event) -> bytes:
    """A record as one server-sent event."""
    return f"data: {JSON.encode(event)}\n\n".encode()
