"""All who watch one engine, and the process that makes what they read. While nobody watches there is none of this."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING

from nanoinfer.parallel.processes import spawn
from nanoinfer.remote.link import Link
from nanoinfer.serve.events import Event
from nanoinfer.serve.watch_child import encoded

if TYPE_CHECKING:
    from nanoinfer.async_llm import AsyncLLM

BEHIND = 256  # records that wait for one watcher at most
WAITING = 4096  # steps that may wait to become records
BEAT_S = 2.0  # between signs of life, by which one notices who has gone, and that the server ends


class Hub:
    """One engine and all who watch it. texts: whether they see what prompts and tokens say."""

    def __init__(self, llm: AsyncLLM, texts: bool) -> None:
        self._llm, self._texts = llm, texts
        self.watchers: dict[int, Watcher] = {}
        self._numbers = count()
        self._source: _Source | None = None

    async def lines(self, told: Event, over: asyncio.Event) -> AsyncIterator[bytes]:
        """What one watcher is sent, until they leave or the server or engine ends. Taking the first, empty, joins."""
        number, watcher = self._join()
        try:
            yield b""
            yield b"event: settings\n" + encoded(told)
            while watcher.source.alive and not over.is_set():
                yield await watcher.next() or b": beat\n\n"
        finally:
            self._leave(number)

    def _join(self) -> tuple[int, Watcher]:
        """One more watches."""
        if self._source is not None and not self._source.alive:
            self._source.close()
            self._source = None
        if self._source is None:
            self._source = _Source(self._llm, self._texts, self._take)
        number, source = next(self._numbers), self._source
        watcher = Watcher(source, number)
        self.watchers[number] = watcher
        return number, watcher

    def _leave(self, number: int) -> None:
        """One watches no more. The last one leaves the engine as fast as it is."""
        self.watchers.pop(number)
        if not self.watchers and self._source:
            self._source.close()
            self._source = None
            if self._llm.alive:
                self._llm.watch(None)
                self._llm.pace(0.0)

    def _take(self, source: _Source, number: int | None, line: bytes) -> None:
        """A record has come, in this event loop."""
        source.made += number is None
        for watcher in self.watchers.values() if number is None else [self.watchers.get(number)]:
            if watcher and watcher.source is source:
                watcher.push(line, keyframe=number is not None)


class _Source:
    """Where records come from: the engine's facts go to a process, in the thread in which they come.

    made: of the records for all, how many have come.
    """

    def __init__(self, llm: AsyncLLM, texts: bool, take: Callable[..., None]) -> None:
        self._llm, self._texts, self.made, self._sent, self._ended = llm, texts, 0, 0, False
        self._engine = llm.engines[:1]
        self._event_loop = asyncio.get_running_loop()
        self._process, connection = spawn("nanoinfer.serve.watch_child")
        self._link = Link(connection, lambda error: None)
        self._link.send(texts)
        Thread(target=self._receive, args=(take,), name="nanoinfer-watch", daemon=True).start()
        self._watch()

    @property
    def alive(self) -> bool:
        """Whether records may still come: its process lives, and so does its engine, of several the first."""
        return not self._ended and self._engine == self._llm.engines[:1]

    def ask(self, number: int, read: int) -> None:
        """A keyframe for one watcher, who has read so many of the records for all."""
        self._link.send((number, read))

    def close(self) -> None:
        """Let the process end."""
        self._ended = True
        self._link.close()

    def _watch(self) -> None:
        """From the next step on, which comes with the whole state."""
        behind = again = False

        def post(facts: Event) -> None:
            nonlocal behind, again
            waiting = self._sent - self.made
            behind = behind or waiting > WAITING
            if not behind:
                self._sent += 1
                self._link.send(facts)
            elif waiting < WAITING // 2 and not again:
                again = True
                with suppress(RuntimeError):  # that event loop is closed
                    self._event_loop.call_soon_threadsafe(self._watch)

        if self.alive and self._llm.alive:
            self._llm.watch(post, texts=self._texts)

    def _receive(self, take: Callable[..., None]) -> None:
        with suppress(RuntimeError):  # that event loop is closed
            for made in self._link:
                self._event_loop.call_soon_threadsafe(take, self, *made)
        if self.alive:
            logging.getLogger(__name__).error("the process that makes what watchers read has ended")
            self._ended = True
        with suppress(OSError):
            self._process.wait()


class Watcher:
    """What waits for one watcher: some records; or nothing, until a keyframe comes in place of more of them."""

    def __init__(self, source: _Source, number: int) -> None:
        self.source, self._number = source, number
        self._lines, self._arrived = deque[bytes](), asyncio.Event()
        self._read = source.made  # of the records for all, those that came before and those that were taken
        self._behind = self._asked = False
        if source.made:  # who comes late begins with a keyframe
            self._fall_behind()

    def push(self, line: bytes, keyframe: bool = False) -> None:
        """One more; where too many wait, all of them are dropped, for a keyframe has what came of them."""
        if keyframe:
            self._behind = self._asked = False
            self._read = self.source.made - 1  # it is read beside them, and counted with them
        elif self._behind:
            return
        elif len(self._lines) == BEHIND:
            self._fall_behind()
            return
        self._lines.append(line)
        self._arrived.set()

    def _fall_behind(self) -> None:
        self._lines.clear()
        self._behind = True
        self._arrived.set()

    async def next(self) -> bytes:
        """All that waits, in one piece; nothing after a while in which nothing came."""
        try:
            await asyncio.wait_for(self._arrived.wait(), BEAT_S)
        except (TimeoutError, asyncio.TimeoutError):
            return b""
        self._arrived.clear()
        if self._behind and not self._asked:
            self._asked = True
            self.source.ask(self._number, self._read)
        self._read += len(self._lines)
        data = b"".join(self._lines)
        self._lines.clear()
        return data
