"""The same engine behind asyncio: many requests at once, each a stream of its own.

The engine runs in its thread and posts what is new once a step, in one call for all streams of an event loop. A stream
keeps no tokens: it reads them from its rows, so one that is read slowly holds up nobody and grows no queue.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.engine.loop import EngineLoop, Mailbox
from nanoinfer.llm import LLM
from nanoinfer.records import Bounds
from nanoinfer.requests import Completion, Piece, Request

if TYPE_CHECKING:
    from nanoinfer.config import Facts
    from nanoinfer.engine.queue import Queued as Row
    from nanoinfer.engine.stats import Gauges, Stats
    from nanoinfer.llm import Params, Prompts
    from nanoinfer.model.gpt2 import GPT2
    from nanoinfer.text.tokenizer import Tokenizer


PACE = Bounds("float32", 0, 60, "a number from 0 to 60")  # seconds from one step to the next, at least


class ServingLLM(LLM):
    """An `LLM` whose requests come and go."""

    _serves = True


class AsyncLLM:
    """An `LLM` for event loops. Arguments and errors are those of `LLM`; the model is loaded at once, and that blocks.

    Over pages, prefix_caching and preemption are on where nothing else is said.
    llm: the LLM itself. Any number of tasks may call at once, on any number of event loops: their requests share the
    engine's rows. If a step fails, all calls end with its cause, and later ones raise RuntimeError.
    """

    kind: type[LLM] = ServingLLM  # what it makes

    def __init__(self, model: str | Path | GPT2 | None = None, *, revision: str | None = None, **settings: Any) -> None:
        self.llm = self.kind(model, revision=revision, **settings)
        self._outlets: dict[asyncio.AbstractEventLoop, _Outlet] = {}

    @property
    def facts(self) -> Facts:
        """What was made: the context, the vocabulary, the rows."""
        return self.llm.facts

    @property
    def tokenizer(self) -> Tokenizer:
        return self.llm.tokenizer

    @property
    def stats(self) -> Stats:
        """Counters since this was made."""
        return self.llm.stats

    @property
    def gauges(self) -> Gauges:
        """What the engine holds just now."""
        return self.llm.loop.gauges

    @property
    def alive(self) -> bool:
        """Whether a request that is sent now can be answered."""
        return not self.llm.loop.closed and self.llm.loop.failure is None

    @property
    def steps(self) -> int | None:
        """Steps that have begun; None where there is nothing to do."""
        return self.llm.stats.steps if self.llm.loop.busy else None

    @property
    def engines(self) -> list[Any]:
        """What may hang by itself, and has `steps`: this engine, or each one of several that is alive."""
        return list(getattr(self.llm.loop, "loops", [self]))

    @property
    def died(self) -> Future[BaseException]:
        """Its result is what ended the engine, once something has; `asyncio.wrap_future` makes it awaitable.

        Closing is no such end: it then stays open.
        """
        return self.llm.loop.died

    async def generate(self, prompts: Prompts, params: Params = None) -> list[Completion]:
        """As `LLM.generate`. A task that is cancelled here cancels its rows: each leaves before the next step."""
        return await self.submit(prompts, params, every_token=False).completions()

    def stream(self, prompts: Prompts, params: Params = None) -> TokenStream:
        """As `LLM.stream`, but computed from now on. Raises ValueError for a bad prompt, before anything is queued."""
        return self.submit(prompts, params)

    def submit(self, prompts: Prompts, params: Params = None, *, every_token: bool = True) -> TokenStream:
        """Let the prompts run; what `stream` and `generate` do. every_token: whether tokens are heard of as they come.

        If not, pieces come when a row has ended, and hold all of it. Raises as `stream`; RuntimeError once the engine
        has died or was closed.
        """
        asked = time.perf_counter()
        return self.begin(self.llm.requests(prompts, params), every_token, asked)

    def begin(self, requests: list[Request], every_token: bool, asked: float) -> TokenStream:
        """Let the requests of `LLM.requests` run. asked: when they were asked for, time.perf_counter()."""
        event_loop, loop = asyncio.get_running_loop(), self.llm.loop
        if loop.failure and not loop.closed:
            raise RuntimeError(f"the engine has died: {loop.failure!r}") from loop.failure
        if event_loop not in self._outlets:
            for gone in [other for other in self._outlets if other.is_closed()]:
                self._outlets.pop(gone).close()
            self._outlets[event_loop] = _Outlet(loop, event_loop)
        outlet = self._outlets[event_loop]
        rows = loop.submit(requests, outlet.mailbox, asked, every_token)
        return TokenStream(outlet, rows, self.llm.tokenizer, every_token)

    def watch(self, listener: Callable[[dict[str, Any]], object] | None, *, texts: bool = False) -> None:
        """From the next step on, call listener(facts) with what each step did, in another thread; None ends it.

        The facts are those of `nanoinfer.engine.recorder`; texts: whether prompts and tokens are in them.
        """
        self.llm.loop.watch(listener, texts)

    def pace(self, seconds_per_step: float) -> None:
        """Let no step begin sooner than so many seconds after the one before; 0 is full speed."""
        PACE.check("seconds_per_step", seconds_per_step)
        self.llm.loop.set_pace(seconds_per_step)

    async def warm_up(self, on_capture: Callable[[int, int], None] | None = None) -> None:
        """As `LLM.warm_up`; on_capture is called in another thread."""
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
    were on their way by then, are dropped. Where the engine fails, what had come is handed out ahead of the cause.

    rows: the records of all samples of all prompts, in this order: .request, .token_ids, .times (time.perf_counter()),
    .finish_reason. The engine's thread goes on with them.
    """

    def __init__(self, outlet: _Outlet, rows: Sequence[Row], tokenizer: Tokenizer, every_token: bool) -> None:
        from nanoinfer.outputs import RowReader

        self._outlet, self._inbox, self.rows, self._every_token = outlet, _Inbox(), tuple(rows), every_token
        self._left = {row: RowReader(row, tokenizer) for row in rows}
        for row in rows:
            outlet.inboxes[row] = self._inbox

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> Piece:
        row, tokens = await self._next()
        reader = self._left[row]
        if row.cancelled and not row.finish_reason:
            if not (tokens := reader.unread):
                self._cancel()
                raise row.cancelled
            self._inbox.news[row] = 1  # of its end, behind what others have
        piece = reader.piece(tokens if self._every_token else reader.unread)
        if piece.completion:
            self._forget(row)
        return piece

    async def completions(self) -> list[Completion]:
        """What comes of all rows, in order of prompt and sample."""
        done = [piece.completion async for piece in self if piece.completion]
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
            if row.cancelled:  # what others have goes ahead of it
                row = next((row for row in news if not row.cancelled or self._left[row].unread), row)
            return row, news.pop(row)
        except BaseException:
            self._cancel()
            raise

    def _forget(self, row: Row) -> None:
        del self._left[row], self._outlet.inboxes[row]

    def _cancel(self) -> None:
        self._drop()
        self._inbox.arrived.set()  # whoever else waits here

    def _drop(self) -> None:
        rows, self._left = list(self._left), {}
        for row in rows:
            self._outlet.inboxes.pop(row, None)
        self._outlet.loop.cancel(rows)

    async def aclose(self) -> None:
        """Cancel what is left: no further piece comes. It may be called again."""
        self._cancel()

    async def __aenter__(self) -> TokenStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._cancel()

    def __del__(self) -> None:
        self._drop()  # in any thread; nobody waits here, who waits holds the stream


@dataclass(eq=False)
class _Inbox:
    """What a stream has not read yet. It does not hold the stream, so one that everybody has dropped is cancelled."""

    news: dict[Row, int] = field(default_factory=dict)  # rows, with the number of tokens that have come
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class _Outlet:
    """Where an engine's news come into one event loop."""

    def __init__(self, loop: EngineLoop, event_loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self._event_loop = loop, event_loop
        self.mailbox = Mailbox(self._post)
        self.inboxes: dict[Row, _Inbox] = {}
        self._news: deque[list[Row]] = deque()
        self._called = False  # whether the event loop will look at them

    def _post(self, rows: list[Row]) -> None:
        """In the engine's thread, after a step."""
        self._news.append(rows)
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
        news: Counter[Row] = Counter()
        while self._news:
            news.update(self._news.popleft())
        for row, count in news.items():
            if inbox := self.inboxes.get(row):
                if not inbox.news:  # else whoever waited has been woken
                    inbox.arrived.set()
                inbox.news[row] = inbox.news.get(row, 0) + count
