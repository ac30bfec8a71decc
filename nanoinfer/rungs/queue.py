"""Many callers, one engine: a budget of tokens a step, chunks of prompts, preemption and cancellation. Chapter 5.

A layer over any engine of chapters 1 to 4. Chunks and the idea of a budget: Agrawal et al. 2023, "SARATHI: Efficient
LLM Inference by Piggybacking Decodes with Chunked Prefills".
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

from nanoinfer.rungs.engine import Engine, Sequence, Work


@dataclass(eq=False)
class Queued(Sequence):
    """A `Sequence` that somebody waits for.

    listener: called in the engine's thread when it has ended, and with each token if `every_token`. arrived: its number
    in order of arrival. brought: how many of its tokens the host brings; the others are known to the device first.
    """

    listener: Callable[[Queued], object] | None = None
    every_token: bool = False
    asked: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)  # when each new token reached the host, time.perf_counter()
    arrived: int = 0
    brought: int = 0
    cancelled: BaseException | None = None
    ended: bool = False


class QueueEngine(Engine):
    """Sequences come and go at any time; a step takes at most `budget` tokens.

    chunk: tokens of one prompt in a step at most. mixed: whether prompts share a step with decoding sequences; if not,
    the two kinds of step take turns, so that neither waits for more than one of the other. Where the cache has no room
    for a sequence to go on, the youngest gives its own back and waits again, ahead of all others.
    """

    def __init__(self, *args: Any, budget: int, chunk: int | None = None, mixed: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.budget, self.chunk, self.mixed = budget, chunk or budget, mixed
        self.inbox: deque[Queued] = deque()  # submitted, or cancelled, since the last step
        self.arrivals = self.preemptions = 0
        self.decodes_next = False

    # Who comes and goes

    def submit(self, s: Queued) -> None:
        """Let a sequence wait for its turn. Any thread may call."""
        self.inbox.append(s)

    def cancel(self, s: Queued, cause: BaseException | None = None) -> None:
        """From the next step on, nothing more comes of this sequence. Any thread may call."""
        if not s.ended and not s.cancelled:
            s.cancelled = cause or CancelledError("cancelled")
            self.inbox.append(s)

    @property
    def busy(self) -> bool:
        return bool(self.inbox) or super().busy

    def step(self) -> list[Sequence]:
        for _ in range(len(self.inbox)):
            s = self.inbox.popleft()
            if s.cancelled:
                self.give_up(s)
            else:
                s.arrived, self.arrivals = self.arrivals, self.arrivals + 1
                self.waiting.append(s)
        return super().step()

    def give_up(self, s: Queued) -> None:
        """End a cancelled sequence, wherever it is."""
        if s.ended:
            return
        s.ended = True
        if s.slot >= 0:
            self.leave(s)
        elif s in self.waiting:
            self.waiting.remove(s)
        self.tell(s)

    def tell(self, s: Queued) -> None:
        """Call the listener. One that raises ends its own sequence, and no other."""
        listener, s.listener = s.listener, None if s.ended else s.listener
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
        self.make_room()
        decoding = [s for s in self.running if s.cached >= s.brought]
        if decoding and self.decodes_next:
            self.decodes_next = False
            return [Work(s, s.cached, self.pending(s)) for s in decoding]
        left, chunks = self.budget - len(decoding) * self.mixed, []
        for s in sorted((s for s in self.running if s.cached < s.brought), key=lambda s: s.arrived):
            left -= self.feed(s, left, chunks)
        while left > 0 and self.waiting and (s := self.admit_next()):
            left -= self.feed(s, left, chunks)
        self.decodes_next = bool(chunks) and not self.mixed
        if chunks and not self.mixed:
            return chunks
        return [Work(s, s.cached, self.pending(s)) for s in decoding] + chunks

    def feed(self, s: Queued, left: int, chunks: list[Work]) -> int:
        """Give a prompt its next chunk; return how many tokens that takes."""
        count = min(s.brought - s.cached, self.chunk, left)
        if count > 0:
            chunks.append(Work(s, s.cached, count))
        return max(0, count)

    def admit_next(self) -> Queued | None:
        """Give the first sequence that waits a slot, if there are slot and room."""
        s = self.waiting[0]
        if not self.free or self.awaits(s) or not self.cache.admit(self.free[-1], s):
            return None
        self.waiting.popleft()
        s.slot, s.brought = self.free.pop(), len(s.token_ids)
        self.running.append(s)
        return s

    def awaits(self, s: Queued) -> bool:
        """Whether tokens of before it was preempted are still on their way."""
        return self.pending(s) + s.cached > len(s.token_ids)

    def make_room(self) -> None:
        """Let each decoding sequence take the room of its next token, the oldest first."""
        has_room = getattr(self.cache, "has_room", None)
        if not has_room:
            return
        for s in sorted(self.running, key=lambda s: s.arrived):
            while s.slot >= 0 and s.cached >= s.brought and not has_room(s.slot, s.cached + 1):
                self.preempt(max(self.running, key=lambda s: s.arrived))

    def preempt(self, s: Queued) -> None:
        """Take the sequence's room; it is fed anew later, ahead of all others."""
        self.leave(s)
        s.cached = 0
        self.waiting.appendleft(s)
        self.preemptions += 1

    # What the new tokens mean

    def settle(self, work: list[Work], tokens: list[int]) -> list[Sequence]:
        """A chunk that does not end its prompt brings no token, and a sequence that was given up gets none."""
        real = [(w, token) for w, token in zip(work, tokens, strict=True) if self.counts(w)]
        settled = super().settle([w for w, _ in real], [token for _, token in real])
        now = time.perf_counter()
        for s in settled:
            s.times.append(now)
            s.ended = s.finish_reason is not None
            self.tell(s)
        return settled

    @staticmethod
    def counts(w: Work) -> bool:
        """Whether a token follows this work."""
        s = w.sequence
        return w.start + w.count >= s.brought and not s.ended
