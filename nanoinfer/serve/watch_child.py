"""The process in which facts become the records that watchers read: the server's own answers requests meanwhile.

It ends with the one that made it. Texts of prompts and tokens are made here, where they are to be shown.
"""

from __future__ import annotations

import json
import os
from multiprocessing.connection import Connection
from typing import Any

from nanoinfer.parallel.processes import die
from nanoinfer.remote.link import Link
from nanoinfer.serve.events import Event, Events

JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def main(connection: Connection) -> None:
    """The process: as long as the server has not closed the connection."""
    link, records = Link(connection, die), None
    try:
        for message in link:
            if records is None:
                records = Records(texts=message)
            else:
                link.send(records.answer(message))
    except BaseException as error:
        die(error)
    os._exit(0)


class Records:
    """What is to be sent to watchers, in order. texts: whether prompts and tokens are shown."""

    def __init__(self, texts: bool) -> None:
        tokenizer = None
        if texts:
            from nanoinfer.text.tokenizer import gpt2_tokenizer

            tokenizer = gpt2_tokenizer()
        self._events, self._made = Events(tokenizer), 0

    def answer(self, message: Any) -> tuple[int | None, bytes]:
        """For whom, None for all, and a record.

        message: facts; or the number of one watcher who needs a keyframe, and how many records for all came before
        those that it missed.
        """
        if isinstance(message, tuple):
            number, read = message
            return number, encoded(self._events.keyframe(self._made - read))
        record = encoded(self._events.take(message))
        self._made += 1
        return None, record


def encoded(event: Event) -> bytes:
    """A record as one server-sent event."""
    return f"data: {JSON.encode(event)}\n\n".encode()
