"""The process in which facts become the records that watchers read: the server's own answers requests meanwhile.

It ends with the one that made it. Texts of prompts and tokens are made here, where they are to be shown.
"""

from __future__ import annotations

import json
import os
from multiprocessing.connection import Connection

from nanoinfer.parallel.processes import die
from nanoinfer.remote.link import Link
from nanoinfer.serve.events import Event, Events

JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def main(connection: Connection) -> None:
    """The process: as long as the server has not closed the connection."""
    try:
        answer(Link(connection, die))
    except BaseException as error:
        die(error)
    os._exit(0)


def answer(link: Link) -> None:
    """Send records, each with its watcher's number, or None for all. The first message: whether texts are shown.

    The others are facts; or the number of one watcher who needs a keyframe, and how many records for all came before
    those that it missed.
    """
    messages, made, tokenizer = iter(link), 0, None
    if next(messages, False):
        from nanoinfer.text.tokenizer import gpt2_tokenizer

        tokenizer = gpt2_tokenizer()
    events = Events(tokenizer)
    for message in messages:
        if isinstance(message, tuple):
            number, read = message
            link.send((number, encoded(events.keyframe(made - read))))
        else:
            made += 1
            link.send((None, encoded(events.take(message))))


def encoded(event: Event) -> bytes:
    """A record as one server-sent event."""
    return f"data: {JSON.encode(event)}\n\n".encode()
