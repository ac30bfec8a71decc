"""Many callers, one engine: a budget of tokens a step, chunks of prompts, preemption and cancellation. Chapter 5.

A layer over any engine of chapters 1 to 4. Chunks and the idea of a budget: Agrawal et al. 2023, "SARATHI: Efficient
LLM Inference by Piggybacking Decodes with Chunked Prefills".
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from collections.abc import Sequence as Ints
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nanoinfer.engine.engine import Engine, Sequence, Work
from nanoinfer.engine.stats import Gauges, Stats

if TYPE_CHECKING:
    from nanoinfer.requests import Request

ARRIVED = attrgetter("arrived")


class Token(NamedTuple):
    """A token that comes with numbers: its own logprobs, and those of the tokens of the prompt that were fed."""

    token: int
    logprobs: list[float] | None
    of_prompt: list[list[float]]


@dataclass(eq=False)
class Queued(Sequence):
    """A `Sequence` that somebody waits for.

    listener: called in the engine's thread when it has ended, and with each token if `every_token`; it must not raise.
    asked: when, by time.perf_counter(). arrived: its number in order of arrival. decoding: whether its prompt has been
    fed. times: when each new token reached the host. cancelled: why nothing more comes of it.
    """

    request: Request
    listener: Callable[[Any], object] | None = None
    every_token: bool = False
    asked: float = field(default_factory=time.perf_counter)
    arrived: int = -1
    decoding: bool = False
    times: list[float] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)  # of each new token, where they are wanted
    prompt_logprobs: list[list[float]] = field(default_factory=list)
    cancelled: BaseException | None = None
    ended: bool = False
    began: float = 0.0  # when it got a row, the first time
    computed: int = 0  # tokens that had been fed when it was preempted
    awaited: int = 0  # how many tokens it will have once those that were on their way then have arrived

    def __post_init__(self) -> None:
        super().__post_init__()
        self.end += self.request.limit == 0  # as if one token came, which is not kept
        self.stop_ids = self.request.stop_ids
        self.watched = self.every_token or self.text is not None  # whether each of its tokens is looked at

    @property
    def token_ids(self) -> list[int]:
        """The new tokens."""
        return self.tokens[len(self.request.prompt_token_ids) :]

    def following(self, start: int, count: int) -> tuple[int, ...]:
        """The prompt's tokens that follow those of a chunk of it, where their logprobs are wanted."""
        wanted = self.request.params.prompt_logprobs is not None
        return self.request.prompt_token_ids[start + 1 : start + 1 + count] if wanted else ()


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
    sequence: Any = Queued  # what it makes of a request
    waiting: Any  # of `Queued`
    running: Any

    def __init__(self, *args: Any, budget: int, chunk: int | None = None, mixed: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.stats: Any = self.Stats()
        self.budget, self.chunk, self.mixed = budget, chunk or budget, mixed
        self.blocks: Any = getattr(self.cache, "blocks", None)
        self.preempts: bool = getattr(self.cache, "preemption", False)
        self.inbox: deque[Queued] = deque()  # submitted, or cancelled, since the last step
        self.open: dict[Queued, None] = {}  # that have not ended, in order of arrival
        self.arrivals, self.decodes_next = 0, False
        self.fed: list[Work] = []
        self.decoded = 0
        self.observer: Any = None  # a `Recorder`, or what has its methods

    # Who comes and goes

    def check(self, request: Request) -> None:
        """ValueError for a request that could never run, whatever else does."""
        if self.blocks:
            self.blocks.check(request)

    def submit(self, request: Request, listener: Any = None, *, known: Ints[int] = (), **settings: Any) -> Any:
        """Let a request wait for its turn. ValueError for one that could never run, whatever else does.

        settings: fields of the `Queued`. known: its first tokens, where another engine has made these; it goes on
        behind them.
        """
        self.check(request)
        s: Queued = self.sequence(request, listener=listener, **settings)
        s.tokens += known
        if s.text:
            s.text.extend(known)
        s.times += [s.asked] * len(known)
        s.logprobs += [[] for _ in known]
        self.inbox.append(s)
        return s

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
        return Gauges(
            len(self.running), len(self.waiting) + len(self.inbox), *(self.blocks.counts if self.blocks else ())
        )

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
                self.finish(s)
            else:
                s.arrived, self.arrivals = self.arrivals, self.arrivals + 1
                self.open[s] = None
                self.waiting.append(s)

    def finish(self, s: Queued) -> None:
        """Nothing more comes of a sequence, wherever it is: its listener hears of it first, since it may be waiting."""
        if s.ended:
            return
        s.ended = True
        self.open.pop(s, None)
        if self.observer:
            self.observer.ended(s)
        self.tell(s)
        s.listener = None  # it may hold the model, and the sequence would hold it
        if (s.cancelled or s.awaited) and s in self.waiting:  # a preempted one may end by a token on its way
            self.waiting.remove(s)
        self.leave(s)

    def abandon(self, cause: BaseException | None = None) -> None:
        """Cancel everything: after a failure of any kind the engine is as new."""
        for s in [*self.open, *self.inbox]:
            s.cancelled = s.cancelled or cause or CancelledError("cancelled")
            self.finish(s)
        self.inbox.clear()
        super().abandon()
        if self.blocks:
            self.blocks.forget()  # what a failed step should have written is not there

    def tell(self, s: Queued) -> None:
        """Let the listener know that a sequence has a new token, if it asked for each, or has ended."""
        if s.listener and (s.ended or s.every_token):
            s.listener(s)

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
                self.blocks.extend(s.row, s.cached, s.cached + count)
            s.decoding = count == pending
            self.stats.recomputed_tokens += max(0, min(count, s.computed - s.cached))
        return count

    def admit_next(self) -> Queued | None:
        """Give the first sequence that waits a row, if there are row and room."""
        s: Queued = self.waiting[0]
        if not self.free or len(s.tokens) < s.awaited or not self.cache.admit(self.free[-1], s):
            return None
        self.waiting.popleft()
        s.row = self.free.pop()
        self.running.append(s)
        if not s.began:
            s.began = time.perf_counter()
            self.stats.requests += 1
            self.stats.prompt_tokens += len(s.request.prompt_token_ids)
            self.stats.cached_tokens += s.cached
        return s

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
                self.observer.left(s)
            if self.blocks:
                self.blocks.publish(s.row, s.tokens, s.cached)
            super().leave(s)

    # What the new tokens mean

    def run(self, work: list[Work]) -> list[int]:
        return super().run(work) if work else []

    def settle(self, work: list[Work], tokens: list[Any]) -> list[Sequence]:
        """Give each sequence its new token, at this time."""
        self.now = time.perf_counter()
        if tokens and isinstance(tokens[0], Token):
            self.keep_numbers(work, tokens)
            tokens = [each.token for each in tokens]
        return self.give(work, tokens)

    def keep_numbers(self, work: list[Work], tokens: list[Token]) -> None:
        """Keep what comes with the tokens, ahead of them: a reader may be another thread.

        Logprobs of prompts are kept by place: a sequence that was preempted gets the same ones again.
        """
        for (s, start, count), (_, own, of_prompt) in zip(work, tokens, strict=True):
            if not s.ended:
                s.prompt_logprobs[start : start + len(of_prompt)] = of_prompt
                if s.params.logprobs is not None and s.request.limit and start + count == len(s.tokens):
                    s.logprobs.append(own)

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
        """Append a token, and tell who listens. A text that fails ends its own sequence, and no other."""
        s.times.append(self.now)
        if not s.request.limit:  # its prompt's logprobs were all that was asked for
            self.stats.new_tokens -= 1
            s.finish_reason = "length"
        else:
            try:
                super().take(s, token)
            except Exception as error:
                self.cancel(s, error)
                return
        if s.finish_reason:
            self.finish(s)
        else:
            self.tell(s)
