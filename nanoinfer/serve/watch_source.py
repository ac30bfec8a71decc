"""Where the records that watchers read come from: the engine's facts go to a process, which makes records of them.

The server's own process answers requests meanwhile. The other ends with it. Texts of prompts and tokens are made there,
where they are to be shown.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection
from threading import Thread
from typing import TYPE_CHECKING

from nanoinfer.parallel.processes import die, spawn
from nanoinfer.remote.link import Link, live, received
from nanoinfer.serve.events import Event, Events
from nanoinfer.text.tokenizer import gpt2_tokenizer

if TYPE_CHECKING:
    from nanoinfer.async_llm import AsyncLLM

KEPT = 256  # records that are kept for those who read slowly, and from one keyframe to the next
WAITING = 4096  # steps that may wait to become records
BEAT_S = 2.0  # between signs of life, by which one notices who has gone, and that the server ends
JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class Source:
    """Sends facts in the thread in which they come, and keeps the newest records.

    watchers: how many there are. made: how many records were, as far as is known.
    """

    def __init__(self, llm: AsyncLLM, texts: bool) -> None:
        self._llm, self._texts, self._engine = llm, texts, llm.engines[:1]
        self.watchers = self.made = self._sent = 0
        self._newest, self._keyframe = deque[bytes](maxlen=KEPT), ""
        self._behind, self._ended = False, False
        self._event_loop = asyncio.get_running_loop()
        self._news = self._event_loop.create_future()  # done with the next record
        self._process, connection = spawn(__name__)
        self.link = Link(connection, lambda error: None)
        self.link.call("begin", texts)
        Thread(target=self._receive, name="nanoinfer-watch", daemon=True).start()
        self._watch()

    @property
    def alive(self) -> bool:
        """Whether records may still come: its process lives, and so does its engine, of several the first."""
        return not self._ended and self._engine == self._llm.engines[:1]

    async def after(self, read: int) -> bytes:
        """What follows the first `read` records, from a keyframe on where they are no longer kept; nothing for a while.

        Who comes late has missed nothing.
        """
        if read == self.made:
            await asyncio.wait([self._news], timeout=BEAT_S)
        left, head = self.made - read, b""
        if left > KEPT:
            left = self.made % KEPT
            skipped = f'"skipped":{self.made - left - read},' if read else ""
            head = f"data: {{{skipped}{self._keyframe[1:]}\n\n".encode()
        return head + b"".join(islice(self._newest, len(self._newest) - left, None))

    def close(self) -> None:
        """Let the process end."""
        self._ended = True
        self.link.close()

    def _watch(self) -> None:
        """From the next step on, which comes with the whole state."""
        if self.alive and self._llm.alive:
            self._llm.watch(self._post, texts=self._texts)

    def _post(self, facts: Event) -> None:
        """Facts go on their way. If too many are, they are dropped up to the next whole state."""
        if "engine" in facts:
            self._behind = False
        elif self._sent - self.made > WAITING:
            self._behind = True
        if not self._behind:
            self._sent += 1
            self.link.call("take", facts)

    def _receive(self) -> None:
        with suppress(RuntimeError):  # that event loop is closed
            for call in received(self.link.connection):  # "made", each time
                self._event_loop.call_soon_threadsafe(self._take, *call.args)
        if self.alive:
            logging.getLogger(__name__).error("the process that makes what watchers read has ended")
            self._ended = True
        with suppress(OSError):
            self._process.wait()

    def _take(self, record: bytes, keyframe: str) -> None:
        """A record has come, and sometimes a keyframe after it."""
        self.made += 1
        self._newest.append(record)
        self._keyframe = keyframe or self._keyframe
        self._news.set_result(None)
        self._news = self._event_loop.create_future()
        if self._behind and self.made == self._sent:
            self._watch()


def main(connection: Connection) -> None:
    """The process: as long as the server has not closed the connection."""
    live(connection, lambda connection: Records(Link(connection, die)))


class Records:
    """Makes records, in that process. A `Source` calls its methods, and hears of what is made."""

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
