"""Many callers, one engine: a budget of tokens a step, chunks of prompts, preemption and cancellation. Chapter 5.

A layer over any engine of chapters 1 to 4. Chunks and the idea of a budget: Agrawal et al. 2023, "SARATHI: Efficient
LLM Inference by Piggybacking Decodes with Chunked Prefills".
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from collections.abc import Sequence as Ints
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from operator import attrgetter, sub
from typing import Any, Protocol

import torch

from nanoinfer.engine.engine import Engine, Sequence, Work
from nanoinfer.engine.stats import Gauges, Stats
from nanoinfer.requests import Metrics, Request, SamplingParams

Listener = Callable[[Any], object]  # is given a `Queued`
ARRIVED = attrgetter("arrived")


@dataclass(eq=False)
class Queued(Sequence):
    """A `Sequence` that somebody waits for.

    listener: called in the engine's thread when it has ended, and with each token if `every_token`. asked: when, by
    time.perf_counter(). arrived: its number in order of arrival. decoding: whether its prompt has been fed. times: when
    each new token reached the host. cancelled: why nothing more comes of it.
    """

    request: Request
    listener: Listener | None = None
    every_token: bool = False
    asked: float = 0.0
    arrived: int = -1
    decoding: bool = False
    times: list[float] = field(default_factory=list)
    cancelled: BaseException | None = None
    ended: bool = False
    watched: bool = False  # whether each of its tokens is looked at when it comes
    began: float = 0.0  # when it got a row, the first time
    computed: int = 0  # tokens that had been fed when it was preempted
    awaited: int = 0  # and tokens that it has once all steps of before have been settled

    def __post_init__(self) -> None:
        super().__post_init__()
        self.end += self.request.limit == 0  # as if one token came, which is not kept
        self.stop_ids, self.watched = self.request.stop_ids, self.every_token or self.text is not None

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def token_ids(self) -> list[int]:
        """The new tokens."""
        return self.tokens[len(self.request.prompt_token_ids) :]

    def metrics(self) -> Metrics:
        return Metrics(ttft_s=self.times[0] - self.asked, itl_s=tuple(map(sub, self.times[1:], self.times)))


class Observer(Protocol):
    """Someone who watches an engine. It is told of each event in the engine's thread."""

    def left(self, s: Queued) -> None:
        """A sequence is about to give its row back: complete, cancelled or preempted."""

    def ended(self, s: Queued) -> None:
        """Nothing more comes of a sequence."""

    def stepped(self, settled: list[Sequence]) -> None:
        """A step is over, in which these sequences got a token. The engine's `fed` says what it fed."""


class QueueEngine(Engine):
    """Sequences come and go at any time; a step feeds at most `budget` tokens. One thread calls it.

    Any thread may call `submit`, `cancel` and `gauges`.
    chunk: tokens of one prompt in a step at most. mixed: whether prompts share a step with decoding sequences; if not,
    the two kinds of step take turns, so that neither waits for more than one of the other. Where the cache has no room
    for a sequence to go on, the youngest gives its own back and waits again, ahead of all others.
    fed, decoded: the work of the last step, and how much of it, first of all, is that of decoding sequences.
    observer: told of each event, if there is one; to be changed between two steps.
    """

    Stats: Any = Stats
    waiting: Any  # of `Queued`
    running: Any

    def __init__(self, *args: Any, budget: int, chunk: int | None = None, mixed: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.stats: Any = self.Stats()
        self.budget, self.chunk, self.mixed = budget, chunk or budget, mixed
        self.blocks: Any = getattr(self.cache, "blocks", None)
        self.preempts: bool = getattr(self.cache, "preemption", False)
        self.shares = self.blocks is not None and self.blocks.identity is not None
        self.inbox: deque[Queued] = deque()  # submitted, or cancelled, since the last step
        self.open: dict[Queued, None] = {}  # that have not ended, in order of arrival
        self.arrivals, self.decodes_next = 0, False
        self.fed: list[Work] = []
        self.decoded = 0
        self.observer: Observer | None = None

    # Who comes and goes

    def check(self, request: Request) -> None:
        """ValueError for a request that could never run, whatever else does."""
        if self.blocks:
            self.blocks.check(request)

    def submit(
        self,
        request: Request,
        listener: Listener | None = None,
        *,
        every_token: bool = False,
        asked: float | None = None,
        known: Ints[int] = (),
    ) -> Queued:
        """Let a request wait for its turn. ValueError for one that could never run, whatever else does.

        known: its first tokens, where another engine has made these; it goes on behind them.
        """
        self.check(request)
        s = self.sequence(request, listener, every_token, time.perf_counter() if asked is None else asked)
        s.tokens += known
        if s.text:
            s.text.extend(known)
        s.times += [s.asked] * len(known)
        self.inbox.append(s)
        return s

    def sequence(self, request: Request, listener: Listener | None, every_token: bool, asked: float) -> Queued:
        """The sequence of a request."""
        return Queued(request, listener=listener, every_token=every_token, asked=asked)

    def cancel(self, s: Queued, cause: BaseException | None = None) -> None:
        """From the next step on, nothing more comes of this sequence. One that has ended stays as it is."""
        if not s.ended and not s.cancelled:
            s.cancelled = cause or CancelledError("cancelled")
            self.inbox.append(s)

    def generate(self, requests: Iterable[Any]) -> Generator[list[Sequence], None, None]:
        """As the base's, beside what others have submitted. Of these requests nothing is left, however it ends."""
        requests = list(requests)
        for request in requests:
            self.check(request)
        sequences = [self.submit(request) for request in requests]
        try:
            for s in sequences:
                while not s.ended:
                    yield self.step()
        except (Exception, KeyboardInterrupt) as error:
            self.abandon(error)  # of a step that failed, blocks may be known that were never written
            raise
        finally:
            for s in sequences:
                self.cancel(s)
            self.take_in()

    @property
    def busy(self) -> bool:
        return bool(self.inbox) or super().busy

    @property
    def gauges(self) -> Gauges:
        """What is held just now; a step that runs meanwhile may be half counted."""
        running, waiting = len(self.running), len(self.waiting) + len(self.inbox)
        return Gauges(running, waiting, *self.blocks.counts) if self.blocks else Gauges(running, waiting)

    def step(self) -> list[Sequence]:
        with torch.inference_mode(), torch.cuda.device_of(self.model.wte.weight):  # type: ignore[no-untyped-call]
            self.take_in()
            self.fed = []
            settled = super().step() if self.busy else []
        if self.observer:
            self.observer.stepped(settled)
        return settled

    def take_in(self) -> None:
        """What was submitted and cancelled since the last step."""
        for _ in range(len(self.inbox)):
            s = self.inbox.popleft()
            if s.cancelled:
                self.give_up(s)
            else:
                s.arrived, self.arrivals = self.arrivals, self.arrivals + 1
                self.open[s] = None
                self.waiting.append(s)

    def give_up(self, s: Queued) -> None:
        """End a cancelled sequence, wherever it is: its listener hears of it first, since it may be waiting."""
        if s.ended:
            return
        self.end(s)
        self.tell(s)
        if s in self.waiting:
            self.waiting.remove(s)
        self.leave(s)

    def end(self, s: Queued) -> None:
        """Nothing more comes of a sequence."""
        s.ended = True
        self.open.pop(s, None)
        if self.observer:
            self.observer.ended(s)

    def abandon(self, cause: BaseException | None = None) -> None:
        """Cancel everything: after a failure of any kind the engine is as new."""
        for s in [*self.open, *self.inbox]:
            s.cancelled = s.cancelled or cause or CancelledError("cancelled")
            self.give_up(s)
        self.inbox.clear()
        super().abandon()
        if self.blocks:
            self.blocks.forget()  # what a failed step should have written is not there

    def tell(self, s: Queued) -> None:
        """Call the listener. One that raises costs its own sequence, and no other."""
        listener = s.listener
        if s.ended:
            s.listener = None  # it may hold the model, and the sequence would hold it
        if listener and (s.ended or s.every_token):
            try:
                listener(s)
            except Exception as error:
                logging.getLogger(__name__).exception("the listener of a request has failed, and the request ends")
                s.listener = None
                self.cancel(s, error)

    # What the next step feeds

    def schedule(self) -> list[Work]:
        """Feed decoding sequences, then prompts in order of arrival, in chunks, within the budget."""
        decoding = self.with_room([s for s in self.running if s.decoding])
        chunks: list[Work] = []
        if not (decoding and self.decodes_next):
            left = self.budget - len(decoding) * self.mixed
            if len(decoding) < len(self.running):
                for s in sorted((s for s in self.running if not s.decoding), key=ARRIVED):
                    left -= self.feed(s, left, chunks)
            while left > 0 and self.waiting and (s := self.admit_next()):
                left -= self.feed(s, left, chunks)
        self.stats.prefill_steps += bool(chunks)
        self.stats.decode_steps += not chunks and bool(decoding)
        self.decodes_next = bool(chunks) and not self.mixed
        decoded = self.pending(decoding) if self.mixed or not chunks else []
        self.fed, self.decoded = decoded + chunks, len(decoded)
        return self.fed

    def feed(self, s: Queued, left: int, work: list[Work]) -> int:
        """Give a prompt its next chunk; return how many tokens that takes."""
        pending = len(s.tokens) - s.cached
        count = max(0, min(pending, self.chunk, left))
        if count:
            work.append((s, s.cached, count))
            if self.blocks:  # now: another sequence that this step admits may share what it writes
                self.blocks.extend(s.row, s.cached + count)
            s.decoding = count == pending
            self.stats.recomputed_tokens += max(0, min(count, s.computed - s.cached))
        return count

    def admit_next(self) -> Queued | None:
        """Give the first sequence that waits a row, if there are row and room. One whose admission raises ends."""
        while self.waiting and self.free:
            s: Queued = self.waiting[0]
            if s.ended:  # by a token that was on its way when it was preempted
                self.waiting.popleft()
                continue
            try:
                if len(s.tokens) < s.awaited or not self.cache.admit(self.free[-1], s):
                    return None
            except Exception as error:
                s.cancelled = error
                self.give_up(s)
                continue
            self.waiting.popleft()
            s.row = self.free.pop()
            self.running.append(s)
            if not s.began:
                s.began = time.perf_counter()
                self.stats.requests += 1
                self.stats.prompt_tokens += len(s.request.prompt_token_ids)
                self.stats.cached_tokens += s.cached
            return s
        return None

    def with_room(self, decoding: list[Queued]) -> list[Queued]:
        """Those of the decoding sequences that have room to go on, once the youngest have given theirs if need be."""
        if not self.preempts:  # then each has reserved the room of its longest text
            return decoding
        size = self.blocks.block_size
        if not (full := [s for s in decoding if s.cached % size == 0]):
            return decoding
        for s in sorted(full, key=ARRIVED):
            while s.row >= 0 and not self.blocks.claim(s.row, s.cached + 1):
                self.preempt(max(self.running, key=ARRIVED))
        return [s for s in decoding if s.decoding]

    def preempt(self, s: Queued) -> None:
        """Take the sequence's room; it is fed anew later, ahead of all others. Tokens on their way are awaited."""
        s.awaited = s.cached + 1 if s.decoding else len(s.tokens)
        s.decoding = False
        self.leave(s)
        s.computed, s.cached = max(s.computed, s.cached), 0
        self.waiting.appendleft(s)
        self.stats.preemptions += 1

    def leave(self, s: Sequence) -> None:
        if s.row >= 0:
            if self.observer:
                self.observer.left(s)  # type: ignore[arg-type]
            if self.shares:
                self.blocks.publish(s.row, s.tokens[: s.cached])
            super().leave(s)

    # What the new tokens mean

    def run(self, work: list[Work]) -> list[int]:
        return super().run(work) if work else []

    def settle(self, work: list[Work], tokens: list[int]) -> list[Sequence]:
        """Give each sequence its new token, at this time."""
        self.now = time.perf_counter()
        return self.give(work, tokens)

    def give(self, work: list[Work], tokens: list[int]) -> list[Sequence]:
        """Take the tokens that are the next ones of their sequences.

        A chunk that does not end its prompt brings no token, and what has ended meanwhile takes none. Most tokens end
        nothing, and nobody hears of them: these are only written down.
        """
        settled, looked, now = [], [], self.now
        for (s, start, count), token in zip(work, tokens, strict=True):
            text, length = s.tokens, start + count
            if s.ended or length != len(text):
                self.stats.dropped_tokens += bool(s.ended and s.request.limit and length >= len(text))
                continue
            settled.append(s)
            if s.watched or length + 1 == s.end or token in s.stop_ids:
                looked.append((s, token))
            else:
                text.append(token)
                s.times.append(now)
        self.stats.new_tokens += len(settled)  # ahead of listeners: who hears that a sequence has ended may look here
        for s, token in looked:
            self.take(s, token)
        return settled

    def take(self, s: Any, token: int) -> None:
        """Append a token, and tell who listens. What fails for this sequence ends it, and no other."""
        s.times.append(self.now)
        try:
            super().take(s, token)
        except Exception as error:
            self.cancel(s, error)
            return
        self.heard(s)

    def heard(self, s: Queued) -> None:
        """Tell who listens, once the newest token has been looked at."""
        if s.finish_reason:
            self.end(s)
        if s.listener:
            self.tell(s)
