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

KEPT = 256  # records that are kept for those who read slowly, and from one keyframe to the next
JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def main(connection: Connection) -> None:
    """The process: as long as the server has not closed the connection."""
    try:
        obey(connection, Records(Link(connection, die)))
    except BaseException as error:
        die(error)
    os._exit(0)


class Records:
    """Makes records. A `Source` calls its methods, and hears of what is made."""

    def __init__(self, link: Link) -> None:
        self._link, self._made = link, 0

    def begin(self, texts: bool) -> None:
        """The first call: whether texts are shown."""
        self._events = Events(gpt2_tokenizer() if texts else None)

    def take(self, facts: Event) -> None:
        """Make a record, and after every 256 a keyframe for those who did not read them."""
        record, self._made = encoded(self._events.take(facts)), self._made + 1
        self._link.call("made", record, JSON.encode(self._events.keyframe()) if self._made % KEPT == 0 else "")


def encoded(event: Event) -> bytes:
    """A record as one server-sent event."""
    return f"data: {JSON.encode(event)}\n\n".encode()
