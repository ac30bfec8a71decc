"""The process in which facts become the records that watchers read: the server's own answers requests meanwhile.

It ends with the one that made it. Texts of prompts and tokens are made here, where they are to be shown.
"""

from __future__ import annotations

import json
import os
from typing import Any

from nanoinfer.serve.engine_link import Link
from nanoinfer.serve.events import Event, Events
from nanoinfer.serve.processes import die, pipes

JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def main() -> None:
    """The process: as long as its pipe is open."""
    source, target = pipes()
    link = Link(os.fdopen(source, "rb"), os.fdopen(target, "wb"), die)
    try:
        (texts,) = link.receive()
        records = Records(texts)
        while True:
            if made := records.answer(link.receive()):
                link.send(made)
    except EOFError:
        os._exit(0)
    except BaseException as error:
        die(error)


class Records:
    """What is to be sent to watchers, in order. texts: whether prompts and tokens are shown."""

    def __init__(self, texts: bool) -> None:
        tokenizer = None
        if texts:
            from nanoinfer.text.tokenizer import gpt2_tokenizer

            tokenizer = gpt2_tokenizer()
        self._events, self._made = Events(tokenizer), 0

    def answer(self, messages: list[Any]) -> list[tuple[int | None, bytes]]:
        """For whom, None for all, and a record.

        messages: facts; or the number of one watcher who needs a keyframe, and how many records for all came before
        those that it missed.
        """
        made: list[tuple[int | None, bytes]] = []
        for message in messages:
            if isinstance(message, tuple):
                number, read = message
                made.append((number, encoded(self._events.keyframe(self._made - read))))
            else:
                made.append((None, encoded(self._events.take(message))))
                self._made += 1
        return made


def encoded(event: Event) -> bytes:
    """A record as one server-sent event."""
    return f"data: {JSON.encode(event)}\n\n".encode()
