"""The process in which facts become the records that watchers read: the server's own answers requests meanwhile.

It ends with the one that made it. Texts of prompts and tokens are made here, where they are to be shown.
"""

from __future__ import annotations

import json
import os
from multiprocessing.connection import Connection

from nanoinfer.parallel.processes import die
from nanoinfer.remote.link import Link, obey
from nanoinfer.serve.events import Event, Events
from nanoinfer.text.tokenizer import gpt2_tokenizer

JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def main(connection: Connection) -> None:
    """The process: as long as the server has not closed the connection."""
    try:
        obey(connection, Records(Link(connection, die)))
    except BaseException as error:
        die(error)
    os._exit(0)


class Records:
    """Makes records and sends them, each with its watcher's number, or None for all. A `Source` calls its methods."""

    def __init__(self, link: Link) -> None:
        self._link, self._made = link, 0

    def begin(self, texts: bool) -> None:
        """The first call: whether texts are shown."""
        self._events = Events(gpt2_tokenizer() if texts else None)

    def take(self, facts: Event) -> None:
        """Make a record for all."""
        self._made += 1
        self._link.call("take", None, encoded(self._events.take(facts)))

    def keyframe(self, number: int, read: int) -> None:
        """Make a keyframe for one watcher. read: how many records for all came before those that it missed."""
        self._link.call("take", number, encoded(self._events.keyframe(self._made - read)))


def encoded(event: Event) -> bytes:
    """A record as one server-sent event."""
    return f"data: {JSON.encode(event)}\n\n".encode()
