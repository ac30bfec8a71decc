"""Logprobs of tokens: of those that were chosen, and of a prompt's own. Chapter 5.

They are raw, log_softmax in float32 of the model's logits: what a user compares models by must not change with
temperature or penalties. One tensor holds all there is to know of n tokens, so that it comes to the host in one copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from nanoinfer.engine.eager import EagerRunner
from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.state import Fetch, upload
from nanoinfer.model.batch import Batch, Chunk
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


class ScoringModel:
    """A model for a prefill step that looks at its prompts too: `scores` are the logprobs of next_ids (S,).

    scored_at: (S,) int64, after which tokens of the batch each of these stands.
    """

    def __init__(self, model: GPT2, scored_at: Tensor, next_ids: Tensor) -> None:
        self.model, self.scored_at, self.next_ids = model, scored_at, next_ids

    def __call__(self, batch: Batch, cache: Cache) -> Tensor:
        assert batch.logits_at is not None
        plan = cache.plan(replace(batch, logits_at=torch.cat([self.scored_at, batch.logits_at])))
        wanted = self.model.hidden(plan.batch, partial(cache.attend, plan))[plan.batch.logits_at]  # (S + K, C)
        self.scores = prompt_logprobs(self.model, wanted[: len(self.scored_at)], self.next_ids)
        return self.model.head(wanted[len(self.scored_at) :])


def score(
    runner: EagerRunner,
    going: Sequence[int],
    chunks: Sequence[Chunk],
    following: Mapping[int, Sequence[int]],
    sampler: Sampler,
) -> tuple[Tensor, Fetch]:
    """As `EagerRunner.prefill`; with it come the logprobs of prompt tokens, on their way to the host.

    following: by row, the tokens that follow those of its chunk in its prompt, one each.
    """
    at: list[int] = []
    start = len(going)
    for chunk in chunks:
        at += range(start, start + len(following.get(chunk.row, ())))
        start += len(chunk.token_ids)
    ids = [token for chunk in chunks for token in following.get(chunk.row, ())]
    scored_at, next_ids = upload([at, ids], torch.int64, runner.state.token.device)
    model = ScoringModel(runner.model, scored_at, next_ids)
    return runner.prefill(going, chunks, sampler, model), Fetch(model.scores)
