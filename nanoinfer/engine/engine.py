"""The one loop: admit, run a step, collect. Chapter 1.

The loop knows neither which cache the model reads nor how a step is launched: caches change in chapters 2 and 3, the
runner in chapter 4. It waits for the GPU in one place, `Engine._collect`. Text: chapters/01-naive.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from nanoinfer.engine.eager import EagerRunner
from nanoinfer.engine.sampling import SAMPLERS, Sampler, Samplers
from nanoinfer.engine.scheduler import Blocks, Row, Scheduler, Step, Work, check_room
from nanoinfer.engine.state import BatchState, Fetch, upload
from nanoinfer.engine.stats import Gauges, Stats
from nanoinfer.model.batch import Chunk
from nanoinfer.model.gpt2 import GPT2, Cache
from nanoinfer.requests import Request

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound="Engine")


def on_device(method: Callable[Concatenate[E, P], T]) -> Callable[Concatenate[E, P], T]:
    """An engine's method in inference mode, its GPU the current one: events, pinned memory and Triton go by that."""

    @wraps(method)
    def inside(self: E, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode(), torch.cuda.device_of(self.state.integers):  # type: ignore[no-untyped-call]
            return method(self, *args, **kwargs)

    return inside


class InFlight(NamedTuple):
    """A step whose tokens are not here yet."""

    rows: list[Row]  # that get a token
    places: list[int] | None  # where each stands among the tokens, if not in this order
    tokens: Fetch
    logprobs: Fetch | None  # of the tokens, in the order of rows
    scored: list[tuple[Row, Chunk]]  # chunks of prompts whose own tokens get logprobs
    scores: Fetch | None  # these, one after another


class RowCache(Cache, Protocol):
    """A cache of rows that come and go: what the engine asks of it besides what the model does."""

    max_len: int

    @property
    def blocks(self) -> Blocks | None: ...
    def clear(self, rows: Tensor) -> None: ...
    def free(self, rows: slice) -> None: ...
    def update(self) -> None: ...
    def move(self, sources: Tensor, targets: Tensor) -> None: ...


class Engine:
    """Runs requests over one model and one cache. One thread at a time may call it, but for `submit` and `cancel`.

    runner: who runs a step, made over model, cache and the batch state. samplers: who chooses tokens.
    max_batch, max_batched_tokens, prefill_chunk, mixed, preemption: as for `Scheduler`.
    lag: how many steps the host may be behind the device when it looks at tokens. A row that ends by its count never
    runs over; one that ends by a stop token runs over by at most `lag` steps, and those tokens are dropped.
    observer: where it is set, called at the end of each step with what was launched and the rows that got a token.
    """

    _scheduler: type[Scheduler] = Scheduler

    def __init__(
        self,
        model: GPT2,
        cache: RowCache,
        max_batch: int,
        stats: Stats | None = None,
        *,
        runner: Callable[[GPT2, RowCache, BatchState], EagerRunner] = EagerRunner,
        samplers: Samplers = SAMPLERS,
        max_batched_tokens: int = 2048,
        prefill_chunk: int | None = None,
        mixed: bool = False,
        preemption: bool = False,
        lag: int = 0,
    ) -> None:
        self.cache, self.max_batch, self.samplers, self.lag = cache, max_batch, samplers, lag
        self.stats = stats or Stats()
        with torch.inference_mode():
            self.state = BatchState.empty(max_batch, model.device)
        self.runner = runner(model, cache, self.state)
        self.scheduler = self._scheduler(cache.blocks, max_batch, max_batched_tokens, prefill_chunk, mixed, preemption)
        self._inbox: deque[Row] = deque()  # submitted, or cancelled, since the last step
        self._in_flight: deque[InFlight] = deque()
        self.observer: Callable[[Step, list[Row]], object] | None = None

    @property
    def rows(self) -> list[Row]:
        """The live rows, by slot."""
        return self.scheduler.rows

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self._inbox or self.scheduler.busy or self._in_flight)

    @property
    def gauges(self) -> Gauges:
        """What is held just now. Any thread may ask; a step that runs meanwhile may be half counted."""
        blocks: Any = self.cache.blocks
        waiting = len(self.scheduler.waiting) + len(self._inbox)
        if blocks is None:
            return Gauges(len(self.rows), waiting)
        pool, cached = blocks.allocator, len(getattr(blocks.allocator, "idle", ()))
        return Gauges(len(self.rows), waiting, pool.blocks - 1 - pool.free_blocks, cached, pool.blocks - 1)

    def check(self, request: Request) -> None:
        """ValueError for a request that could never run, whatever else does."""
        if (request.params.scores or request.params.prompt_logprobs is not None) and not self.samplers.scoring:
            raise ValueError("this engine has no sampler for penalties and logprobs")
        check_room(request, self.cache.blocks)

    def submit(
        self,
        request: Request,
        listener: Callable[[Row], None] | None = None,
        *,
        every_token: bool = False,
        asked: float | None = None,
        known: Sequence[int] = (),
    ) -> Row:
        """Let a request wait for its turn. ValueError for one that could never run, whatever else does.

        listener: told, in the thread that calls `step`, when the row has ended, and of each token if `every_token`.
        known: its first tokens, where another engine has made these; it goes on behind them.
        """
        self.check(request)
        row = Row(request, time.perf_counter() if asked is None else asked, listener, every_token)
        row.go_on_after(known)
        self._inbox.append(row)
        return row

    def cancel(self, row: Row, cause: BaseException | None = None) -> None:
        """From the next step on, nothing more comes of this row. One that has ended by then stays as it is."""
        if not row.ended and not row.cancelled:
            row.cancelled = cause or CancelledError("cancelled")
            self._inbox.append(row)

    def generate(self, requests: Sequence[Request]) -> Generator[list[Row], None, None]:
        """Run the requests; yield, as steps settle, the rows that got a token. A row is done at its finish_reason.

        However the caller leaves the iterator, these rows are free afterwards.
        """
        for request in requests:
            self.check(request)
        rows: list[Row] = []
        try:
            for request in requests:
                rows.append(self.submit(request))
            for row in rows:
                while not row.ended:
                    yield self.step()
        except (Exception, KeyboardInterrupt) as error:
            self.abandon(error)  # of a step that failed, blocks may be known that were never written
            raise
        finally:
            for row in rows:
                self.cancel(row)
            self._take_in()

    @on_device
    def step(self) -> list[Row]:
        """Launch the next step, if there is work for one, and take in an earlier one: the rows that got a token."""
        if self._inbox:
            self._take_in()
        step = self.scheduler.schedule()
        while self.scheduler.refused:
            self._give_up(self.scheduler.refused.pop())
        self.stats.preemptions = self.scheduler.preemptions
        self._arrange(step)
        if launched := bool(step.going or step.pieces):
            self._launch(step)
        lag = self.lag if launched and self.scheduler.busy else 0  # else a row waits for these tokens
        settled = self._collect(lag)
        if self.observer:
            self.observer(step, settled)
        return settled

    @on_device
    def _take_in(self) -> None:
        """What was submitted and cancelled since the last step."""
        for _ in range(len(self._inbox)):
            row = self._inbox.popleft()
            if not row.cancelled:
                self.scheduler.submit(row)
            elif not row.ended:
                self._give_up(row)
        self._tidy()

    def _give_up(self, row: Row) -> None:
        """End a cancelled row: its listener hears of it first, since it may be waiting."""
        row.ended = True
        self._tell(row)
        self.scheduler.drop(row)

    def _tell(self, row: Row) -> None:
        """Tell a row's listener of its cancellation, once."""
        if row.cancelled and row.listener:
            self._notify(row)
            row.listener = None

    def _notify(self, row: Row) -> None:
        """Call a row's listener. One that raises costs its own row, and no other."""
        assert row.listener
        try:
            row.listener(row)
        except Exception as error:
            logging.getLogger(__name__).exception("the listener of a request has failed, and the request ends")
            row.listener = None
            self.cancel(row, error)

    def _arrange(self, step: Step) -> None:
        """Rows of the device as the host has them: some move into gaps, some begin, and the rest are padding.

        Steps in flight may still write for a row that has left. They were launched before whatever its room is given to
        next, and a stream runs in order.
        """
        begun = [(row.slot, row.request, row.token_ids) for row in step.begun]
        self.place(step.sources, step.targets, step.freed, begun)
        if begun:
            self._count(step.begun)

    def place(
        self,
        sources: Sequence[int],
        targets: Sequence[int],
        freed: slice,
        begun: Sequence[tuple[int, Request, list[int]]],
    ) -> None:
        """Move, free and begin rows on the device. begun: slot, request, and the tokens that it has already."""
        device = self.state.token.device
        if sources:
            source, target = upload([sources, targets], torch.int64, device)
            self.cache.move(source, target)
            self.state.move(source, target)
            if self.samplers.scoring:
                self.samplers.scoring.move(source, target)
        if freed.start < freed.stop:
            self.state.free(freed)
            self.cache.free(freed)
        if begun:
            slots, requests, known = zip(*begun, strict=True)
            self.cache.clear(self.state.admit(slots, requests, map(len, known)))
            if self.samplers.scoring:
                for slot, request, token_ids in begun:
                    self.samplers.scoring.admit(slot, request, token_ids)

    def _count(self, begun: list[Row]) -> None:
        stats, now = self.stats, time.perf_counter()
        for row in begun:
            if not row.computed:  # else it was preempted
                row.began = now
                stats.requests += 1
                stats.prompt_tokens += len(row.prompt)
                stats.cached_tokens += row.fed

    def _launch(self, step: Step) -> None:
        """Run a step, and start the copy of its tokens."""
        slots, places = [row.slot for row in step.going], None
        sampler = self._sampler([*step.going, *[row for row, _ in step.pieces]])
        chunks = [_chunk(work) for work in step.pieces]
        scored = [
            (row, chunk)
            for (row, _), chunk in zip(step.pieces, chunks, strict=True)
            if row.request.params.prompt_logprobs is not None
        ]
        following = {chunk.row: _following(row, chunk) for row, chunk in scored}
        longest = 0 if chunks else 1 + max([row.fed for row in step.going])
        tokens, scores = self.run(slots, chunks, following, self.samplers.index(sampler), longest)
        if chunks:
            slots += [chunk.row for chunk in chunks if chunk.complete]
            self.stats.prefill_steps += 1
        else:
            places = slots if len(slots) < len(tokens) else None
            self.stats.decode_steps += 1
        logprobs = sampler.fetch(slots) if sampler is self.samplers.scoring else None
        rows = self.scheduler.launch(step)
        self.stats.recomputed_tokens = self.scheduler.recomputed
        self._in_flight.append(InFlight(rows, places, Fetch(tokens), logprobs, scored, scores))

    def run(
        self,
        slots: Sequence[int],
        chunks: Sequence[Chunk],
        following: Mapping[int, Sequence[int]],
        kind: int,
        longest: int,
    ) -> tuple[Tensor, Fetch | None]:
        """A step on the device, of rows that decode and of chunks of prompts: its tokens, and logprobs of the prompts.

        following: by row, the tokens of which logprobs are wanted. kind: which of the samplers. longest: of a step
        without pieces, as the runner's `decode` takes it.
        """
        self.cache.update()
        sampler: Sampler = self.samplers[kind]
        if following:
            scored: tuple[Tensor, Fetch] = self.samplers.scoring.score(self.runner, slots, chunks, following, sampler)
            return scored
        if chunks:
            return self.runner.prefill(slots, chunks, sampler), None
        return self.runner.decode(slots[-1] + 1, longest, sampler), None

    def _collect(self, lag: int) -> list[Row]:
        """Take in the tokens of the oldest step, if it is over, or `lag` steps behind. The one place that waits."""
        if not self._in_flight or (len(self._in_flight) <= lag and not self._in_flight[0].tokens.arrived):
            return []
        rows, places, fetch, logprobs, scored, scores = self._in_flight.popleft()
        tokens = fetch.wait()
        if places is not None:
            tokens = [tokens[place] for place in places]
        now = time.perf_counter()
        if logprobs:
            for row, values in zip(rows, logprobs.wait(), strict=True):
                if row.request.params.logprobs is not None and not row.ended:
                    row.logprobs.append(values)
        if scores:
            self._score(scored, iter(scores.wait()))
        settled, watched = [], []
        for row, token in zip(rows, tokens, strict=True):
            if not row.ended:
                row.token_ids.append(token)
                row.times.append(now)
                settled.append(row)
                if row.watched or token in row.stop_ids or len(row.token_ids) == row.limit:
                    watched.append((row, token))
        self.stats.new_tokens += len(settled)  # ahead of listeners: who hears that a row has ended may look here
        self.stats.dropped_tokens += len(rows) - len(settled)
        for row, token in watched:
            self._settle(row, token)
        self._tidy()
        return settled

    def _score(self, scored: Sequence[tuple[Row, Chunk]], values: Iterator[list[float]]) -> None:
        """Give prompts the logprobs of their tokens, by place: a preempted row gets the same ones again."""
        for row, chunk in scored:
            count = len(_following(row, chunk))
            row.prompt_logprobs[chunk.start : chunk.start + count] = islice(values, count)
            if not row.limit and chunk.start + len(chunk.token_ids) == len(row.prompt) and not row.ended:
                row.times.append(time.perf_counter())  # in place of a first token's
                self._settle(row, None)

    def _settle(self, row: Row, token: int | None) -> None:
        """Look at a row's newest token: give the row its finish reason where it ends, and tell who listens."""
        stopped, text = token in row.stop_ids, row.request.text
        if text is not None and token is not None and not stopped:
            try:
                text.push(token)
            except Exception as error:  # of this row's text: the others go on
                self.cancel(row, error)
                return
            stopped = text.stopped
        if stopped or len(row.token_ids) == row.limit:
            row.finish_reason = "stop" if stopped else "length"
            row.ended = True
            self.scheduler.drop(row)
        if row.listener and (row.ended or row.every_token):
            self._notify(row)
        if row.ended:
            row.listener = None  # who listens may hold the model, and the row would hold it

    def _tidy(self) -> None:
        """Where no row is left, there may be no further step in which the device would hear of it."""
        if not self.scheduler.busy:
            self._arrange(self.scheduler.schedule())

    @on_device
    def abandon(self, cause: BaseException) -> None:
        """Cancel every request and wait for what was launched: after a failure of any kind the engine is as new."""
        self._in_flight, launched = deque(), self._in_flight
        last = [row for step in launched for row in step.rows]  # some have left already, by their count
        last += [row for step in launched for row, _ in step.scored]  # and some were to get no token
        for row in (*self._inbox, *self.scheduler.waiting, *self.rows, *last):
            self.cancel(row, cause)
            self._tell(row)
        self._take_in()
        self.place([], [], slice(0, self.max_batch), [])  # the step that failed may have been about to free some
        if self.cache.blocks:
            self.cache.blocks.clear()  # what a failed step should have written is not there
        for step in launched:
            step.tokens.wait()

    def _sampler(self, rows: Sequence[Row]) -> Sampler:
        """The cheapest sampler that serves all these rows. Which one it is changes no row's token."""
        return self.samplers[max([row.sampler for row in rows])]


def _chunk(work: Work) -> Chunk:
    """The next tokens of a row's prompt."""
    row, tokens = work
    return Chunk(row.slot, row.fed, row.prompt[row.fed : row.fed + tokens], work.complete and row.limit > 0)


def _following(row: Row, chunk: Chunk) -> Sequence[int]:
    """The prompt's tokens that follow those of a piece of it, one each."""
    return row.request.prompt_token_ids[chunk.start + 1 : chunk.start + 1 + len(chunk.token_ids)]
