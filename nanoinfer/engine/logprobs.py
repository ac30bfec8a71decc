"""Logprobs of tokens: of those that were chosen, and of a prompt's own. Chapter 5.

They are raw, log_softmax in float32 of the model's logits: what a user compares models by must not change with
temperature or penalties. One tensor holds all there is to know of n tokens, so that it comes to the host in one copy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nanoinfer.model.gpt2 import GPT2
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
