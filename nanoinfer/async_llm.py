"""The same engine behind asyncio: many requests at once, each a stream of its own.

The engine runs in its thread and posts what is new once a step, in one call for all streams of an event loop. A stream
keeps no tokens: it reads them from its rows, so one that is read slowly holds up nobody and grows no queue.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.engine.loop import EngineLoop, Mailbox
from nanoinfer.llm import LLM
from nanoinfer.requests import Completion, Piece, SamplingParams

if TYPE_CHECKING:
    from nanoinfer.engine.scheduler import Row
    from nanoinfer.engine.stats import Stats
    from nanoinfer.model.gpt2 import GPT2
    from nanoinfer.text.prompts import Prompt
    from nanoinfer.text.tokenizer import Tokenizer


class _ServingLLM(LLM):
    _serves = True


class AsyncLLM:
    """An `LLM` for event loops. Arguments and errors are those of `LLM`; the model is loaded at once, and that blocks.

    Over pages, prefix_caching and preemption are on where nothing else is said.
    llm: the LLM itself. Any number of tasks may call at once, on any number of event loops: their requests share the
    engine's rows. If a step fails, all calls end with its cause, and later ones raise RuntimeError.
    """

    def __init__(self, model: str | Path | GPT2 | None = None, *, revision: str | None = None, **settings: Any) -> None:
        self.llm: LLM = _ServingLLM(model, revision=revision, **settings)
        self._outlets: dict[asyncio.AbstractEventLoop, _Outlet] = {}

    @property
    def stats(self) -> Stats:
        """Counters since this was made."""
        return self.llm.stats

    @property
    def alive(self) -> bool:
        """Whether a request that is sent now can be answered."""
        return not self.llm.loop.closed and self.llm.loop.failure is None

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """As `LLM.generate`. A task that is cancelled here cancels its rows: each leaves before the next step."""
        return await self._submit(prompts, params, every_token=False).completions()

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> TokenStream:
        """As `LLM.stream`, but computed from now on. Raises ValueError for a bad prompt, before anything is queued."""
        return self._submit(prompts, params, every_token=True)

    def _submit(self, prompts: Any, params: Any, every_token: bool) -> TokenStream:
        asked, event_loop, loop = time.perf_counter(), asyncio.get_running_loop(), self.llm.loop
        if loop.failure and not loop.closed:
            raise RuntimeError(f"the engine has died: {loop.failure!r}") from loop.failure
        requests = self.llm.requests(prompts, params)
        if event_loop not in self._outlets:
            for gone in [other for other in self._outlets if other.is_closed()]:
                self._outlets.pop(gone).close()
            self._outlets[event_loop] = _Outlet(loop, event_loop)
        outlet = self._outlets[event_loop]
        rows = loop.submit(requests, outlet.mailbox, asked, every_token)
        return TokenStream(outlet, rows, self.llm.tokenizer)

    async def warm_up(self, on_capture: Callable[[int, int], None] | None = None) -> None:
        """As `LLM.warm_up`; on_capture is called in the engine's thread."""
        await asyncio.to_thread(self.llm.warm_up, on_capture)

    def close(self) -> None:
        """As `LLM.close`. It waits for the step that runs; leaving `async with` does not block the event loop."""
        self.llm.close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)


class TokenStream:
    """The pieces of one call, as an asynchronous iterator; those of several prompts or samples come interleaved.

    A piece has all tokens of its row that have come since the one before: one, or more for a reader who comes late.
    `aclose`, the end of an `async with`, and the cancellation of a task that waits for a piece cancel what is left, and
    so does dropping the stream. A row leaves before the next step is launched, and at most `lag` of its tokens, which
    were on their way by then, are dropped.
    """

    def __init__(self, outlet: _Outlet, rows: Iterable[Row], tokenizer: Tokenizer) -> None:
        from nanoinfer.outputs import RowReader

        self._outlet, self._inbox = outlet, _Inbox()
        self._left = {row: RowReader(row, tokenizer) for row in rows}
        for row in rows:
            outlet.inboxes[row] = self._inbox

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> Piece:
        row, tokens = await self._next()
        piece = self._left[row].piece(tokens)
        if piece.completion:
            self._forget(row)
        return piece

    async def completions(self) -> list[Completion]:
        """What comes of all rows, in order of prompt and sample."""
        done = []
        while self._left:
            row, _ = await self._next()
            done.append(self._left[row].completion())
            self._forget(row)
        return sorted(done, key=lambda completion: (completion.index, completion.sample))

    async def _next(self) -> tuple[Row, int]:
        """The row whose news are the oldest, and of how many tokens they are."""
        news, arrived = self._inbox.news, self._inbox.arrived
        try:
            while self._left and not news:
                arrived.clear()
                await arrived.wait()
            if not self._left:
                raise StopAsyncIteration
            row = next(iter(news))
            if row.cancelled:
                raise row.cancelled
            return row, news.pop(row)
        except BaseException:
            self._cancel()
            raise

    def _forget(self, row: Row) -> None:
        del self._left[row], self._outlet.inboxes[row]

    def _cancel(self) -> None:
        rows, self._left = list(self._left), {}
        for row in rows:
            self._outlet.inboxes.pop(row, None)
        self._outlet.loop.cancel(rows)
        self._inbox.arrived.set()  # whoever else waits here

    async def aclose(self) -> None:
        """Cancel what is left: no further piece comes. It may be called again."""
        self._cancel()

    async def __aenter__(self) -> TokenStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._cancel()

    def __del__(self) -> None:
        self._cancel()


@dataclass(eq=False)
class _Inbox:
    """What a stream has not read yet. It does not hold the stream, so one that everybody has dropped is cancelled."""

    news: Counter[Row] = field(default_factory=Counter)  # rows, with the number of tokens that have come
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class _Outlet:
    """Where an engine's news come into one event loop."""

    def __init__(self, loop: EngineLoop, event_loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self._event_loop = loop, event_loop
        self.mailbox = Mailbox(self._post)
        self.inboxes: dict[Row, _Inbox] = {}
        self._news: deque[Row] = deque()
        self._called = False  # whether the event loop will look at them

    def _post(self, rows: list[Row]) -> None:
        """In the engine's thread, after a step."""
        self._news += rows
        if self._called and not self._event_loop.is_closed():
            return
        self._called = True
        try:
            self._event_loop.call_soon_threadsafe(self._hand_out)
        except RuntimeError:  # that event loop is closed: nobody will ever read
            self.close()

    def close(self) -> None:
        self.loop.cancel(list(self.inboxes))
        self.loop.leave(self.mailbox)

    def _hand_out(self) -> None:
        """In the event loop: wake the streams that have news."""
        self._called = False  # ahead of the look: whatever comes later calls again
        while self._news:
            row = self._news.popleft()
            if inbox := self.inboxes.get(row):
                inbox.news[row] += 1
                inbox.arrived.set()
