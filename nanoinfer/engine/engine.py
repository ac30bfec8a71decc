"""The loop of every engine: schedule, run, settle. Chapter 1.

A step decides which tokens to feed (`schedule`), feeds them and chooses the next ones (`run`), and hands each sequence
its new token (`settle`). Later chapters replace these three verbs, one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from nanoinfer.engine.sampling import Choices, sample_filtered
from nanoinfer.model.batch import Batch
from nanoinfer.model.gpt2 import GPT2, Cache
from nanoinfer.records import FinishReason, Request, SamplingParams
from nanoinfer.text.stop import TextStream
from nanoinfer.text.tokenizer import gpt2_tokenizer


@dataclass(eq=False)
class Sequence:
    """A request on its way: its tokens so far, and how many of them the cache holds.

    row: its place in the cache; -1 while it waits. tokens: the prompt's, and then the new ones. end: how many
    tokens it may come to have. text: where its stop strings are looked for, if it has any.
    """

    request: Request
    row: int = -1
    cached: int = 0
    finish_reason: FinishReason | None = None
    tokens: list[int] = field(init=False)
    end: int = field(init=False)
    text: TextStream | None = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_token_ids)
        self.end = len(self.tokens) + self.request.limit
        self.text = TextStream(gpt2_tokenizer(), self.params.stop) if self.params.stop else None

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def generated(self) -> int:
        """How many new tokens it has."""
        return len(self.tokens) - len(self.request.prompt_token_ids)


Work = tuple[Any, int, int]  # a sequence's part in a step: the position of its first token, and how many they are


class SlotCache(Cache, Protocol):
    """What the engine asks of a cache besides what the model asks."""

    def admit(self, row: int, sequence: Sequence) -> bool:
        """Make room for a sequence in a free row. False if there is none now."""

    def release(self, row: int) -> None:
        """Take the room back."""

    def keep(self, sequence: Sequence, count: int) -> int:
        """Return how many of a sequence's first `count` tokens the cache will hold once they have been fed."""


class Engine:
    """Runs sequences to their end over one model and one cache, up to `max_batch` at a time.

    A sequence waits in order of arrival for a free row. A step feeds either the sequences that have just been
    given a row, or all the others: of each, the tokens that the cache does not hold.
    """

    def __init__(self, model: GPT2, cache: SlotCache, max_batch: int) -> None:
        self.model, self.cache = model, cache
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.free = list(range(max_batch))

    def generate(self, requests: Iterable[Request]) -> Iterator[list[Sequence]]:
        """Run these requests to their end; yield, after each step, the sequences that got a token.

        However the caller leaves the iterator, the engine is free afterwards.
        """
        self.waiting += map(Sequence, requests)
        try:
            while self.busy:
                yield self.step()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of every sequence."""
        self.waiting.clear()
        for s in list(self.running):
            self.leave(s)

    @property
    def busy(self) -> bool:
        """Whether a sequence waits or runs."""
        return bool(self.waiting or self.running)

    def step(self) -> list[Sequence]:
        """Feed the next tokens; return the sequences that got a new one."""
        work = self.schedule()
        return self.settle(work, self.run(work))

    def schedule(self) -> list[Work]:
        """Choose the next tokens to feed: of new sequences if a row is free for one, else of all that run."""
        admitted = []
        while self.waiting and self.free and self.cache.admit(self.free[-1], self.waiting[0]):
            s = self.waiting.popleft()
            s.row = self.free.pop()
            admitted.append(s)
        self.running += admitted
        return self.pending(admitted or self.running)

    def pending(self, sequences: Iterable[Sequence]) -> list[Work]:
        """The tokens of these sequences that the cache does not hold."""
        return [(s, s.cached, len(s.tokens) - s.cached) for s in sequences]

    @torch.inference_mode()
    def run(self, work: list[Work]) -> list[int]:
        """Run the model over these tokens and choose one new token for each sequence."""
        batch = Batch.of(work, self.model.device)
        for s, start, count in work:
            s.cached = self.cache.keep(s, start + count)
        logits = self.model(batch, self.cache)  # (B, V)
        return self.choose(logits, [s for s, _, _ in work]).tolist()

    def choose(self, logits: Tensor, sequences: list[Sequence]) -> Tensor:
        """Choose a token (B,) from logits (B, V), each row by its own sequence's parameters."""
        if all(s.params.greedy for s in sequences):
            return logits.argmax(-1)
        return sample_filtered(logits, Choices.of([(s.request, s.generated) for s in sequences], logits.device))

    def settle(self, work: list[Work], tokens: list[int]) -> list[Sequence]:
        """Give each sequence its new token; return the sequences."""
        for (s, _, _), token in zip(work, tokens, strict=True):
            self.take(s, token)
        return [s for s, _, _ in work]

    def take(self, s: Sequence, token: int) -> None:
        """Append a token to a sequence. One that ends here leaves."""
        s.tokens.append(token)
        stopped = token in s.request.stop_ids
        if s.text and not stopped:
            s.text.push(token)
            stopped = s.text.stopped
        if stopped or len(s.tokens) == s.end:
            s.finish_reason = "stop" if stopped else "length"
            self.leave(s)

    def leave(self, s: Sequence) -> None:
        """Give the row of a sequence back."""
        self.running.remove(s)
        self.cache.release(s.row)
        self.free.append(s.row)
        s.row = -1
