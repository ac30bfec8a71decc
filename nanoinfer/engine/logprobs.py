"""Logprobs of tokens: of those that were chosen, and of a prompt's own. Chapter 5.

They are raw, log_softmax in float32 of the model's logits: what a user compares models by must not change with
temperature or penalties. One tensor holds all there is to know of n tokens, so that it comes to the host in one copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from nanoinfer.engine.state import upload
from nanoinfer.model.batch import Batch
from nanoinfer.model.gpt2 import GPT2, Cache
from nanoinfer.requests import TOP_LOGPROBS

SLICE = 128  # tokens whose logits are held at once: of 1,024 tokens they would take 200 MB


def width(vocab_size: int) -> int:
    """How many numbers `logprobs` makes of a token."""
    return 2 * (1 + min(TOP_LOGPROBS, vocab_size))


def logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Of logits (n, V) and the token (n,) that was chosen after each: (n, width(V)) float32.

    First the ids, that of the token and of the most probable, then their logprobs in the same order. float32 holds ids
    below 2^24 exactly.
    """
    assert logits.shape[-1] <= 2**24
    every = logits.float().log_softmax(-1)  # (n, V)
    top, top_ids = every.topk(min(TOP_LOGPROBS, logits.shape[-1]))  # (n, top) each
    chosen = token_ids[:, None]
    return torch.cat([chosen, top_ids, every.gather(1, chosen), top], 1)


def prompt_logprobs(model: GPT2, hidden: Tensor, next_ids: Tensor) -> Tensor:
    """`logprobs` of the tokens (n,) that follow hidden (n, C), a slice at a time."""
    slices = zip(torch.split(hidden, SLICE), torch.split(next_ids, SLICE), strict=True)
    return torch.cat([logprobs(model.head(h), ids) for h, ids in slices])


def following(s: Any, start: int, count: int) -> tuple[int, ...]:
    """The prompt's tokens that follow those of a chunk of it, where their logprobs are wanted."""
    wanted = s.params.prompt_logprobs is not None
    return s.request.prompt_token_ids[start + 1 : start + 1 + count] if wanted else ()


class ScoringModel:
    """A model for one step that looks at prompts too: `scores` are the logprobs of the tokens that are wanted.

    wanted: for each chunk of the step, the tokens that follow its own, or none. counts: how many tokens each chunk has.
    """

    def __init__(self, model: GPT2, wanted: list[tuple[int, ...]], counts: Iterable[int]) -> None:
        starts = accumulate(counts, initial=0)
        at = [place for start, ids in zip(starts, wanted, strict=False) for place in range(start, start + len(ids))]
        self.model, next_ids = model, [token for ids in wanted for token in ids]
        self.scored_at, self.next_ids = upload([at, next_ids], torch.int64, model.device)  # (S,) each

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, batch: Batch, cache: Cache) -> Tensor:
        hidden = self.model.hidden(batch, partial(cache.attend, cache.plan(batch)))  # (N, C)
        self.scores = prompt_logprobs(self.model, hidden[self.scored_at], self.next_ids)
        return self.model.head(batch.last(hidden))


@contextmanager
def scoring(engine: Any, *asked: Any) -> Iterator[ScoringModel]:
    """Meanwhile the engine's model is a `ScoringModel`."""
    model = engine.model
    engine.model = ScoringModel(model, *asked)
    try:
        yield engine.model
    finally:
        engine.model = model
