"""All who watch one engine, and the process that makes what they read. While nobody watches there is none of this."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import islice
from threading import Thread

from nanoinfer.async_llm import AsyncLLM
from nanoinfer.parallel.processes import spawn
from nanoinfer.remote.link import Link, received
from nanoinfer.serve.events import Event
from nanoinfer.serve.service import Service
from nanoinfer.serve.watch_child import KEPT, encoded

WAITING = 4096  # steps that may wait to become records
SLOWEST_S = 5.0  # a step, in a classroom
BEAT_S = 2.0  # between signs of life, by which one notices who has gone, and that the server ends


class Hub:
    """A server's engine and all who watch it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.source: Source | None = None

    @property
    def watchers(self) -> int:
        """How many watch."""
        return self.source.watchers if self.source else 0

    async def lines(self) -> AsyncIterator[bytes]:
        """What one watcher is sent, until they leave or the server or engine ends. Taking the first, empty, joins."""
        service, config = self.service, self.service.config
        if not self.source or not self.source.alive:
            self.source = Source(service.check_open(rows=0), config.watch_texts)
        source, read = self.source, 0
        source.watchers += 1
        told: Event = {"model": service.name, "key": config.api_key is not None, "slowest": SLOWEST_S}
        told |= {"texts": config.watch_texts, "classroom": config.classroom}
        try:
            yield b""
            yield b"event: settings\n" + encoded(told)
            while source.alive and not service.over.is_set():
                data, read = await source.after(read), source.made
                yield data or b": beat\n\n"
        finally:
            source.watchers -= 1
            if not source.watchers:
                source.close()
                if self.source is source:
                    self.source = None
                    if (llm := service.llm) and llm.alive:
                        llm.watch(None)
                        llm.pace(0.0)  # the last one leaves the engine as fast as it is


class Source:
    """Where records come from: the engine's facts go to a process, in the thread in which they come.

    watchers: how many there are. made: how many records were, as far as is known.
    """

    def __init__(self, llm: AsyncLLM, texts: bool) -> None:
        self._llm, self._texts, self._engine = llm, texts, llm.engines[:1]
        self.watchers = self.made = self._sent = 0
        self._newest, self._keyframe = deque[bytes](maxlen=KEPT), ""
        self._behind, self._ended = False, False
        self._event_loop = asyncio.get_running_loop()
        self._news = self._event_loop.create_future()  # done with the next record
        self._process, connection = spawn("nanoinfer.serve.watch_child")
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
