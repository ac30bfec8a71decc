"""Logits to next tokens, row by row, on the device. Chapter 1.

The rule of the book, the same for every engine: the next token is the argmax, over the kept ids, of
logit / temperature + Gumbel noise (the Gumbel-max trick: Gumbel 1954; Maddison et al. 2014, section 2). Kept are the
ids that pass top-k, then top-p. The noise is a hash of (seed, step, id) and of nothing else. No generator keeps a
state, so a row's random numbers do not depend on its neighbours, on the batch size or on the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from nanoinfer.records import Request

_WORD = 0xFFFFFFFF


class Choices(NamedTuple):
    """How the next token of each of B sequences is chosen."""

    temperature: Tensor  # (B,) float32, 0 for greedy
    top_p: Tensor  # (B,) float32, 1 for no such filter
    top_k: Tensor  # (B,) int64, 0 for no such filter
    seed: Tensor  # (B,) int64, of the sequence's noise
    step: Tensor  # (B,) int64, the number of the token that comes next

    @classmethod
    def of(cls, requests: Sequence[tuple[Request, int]], device: torch.device) -> Choices:
        """Those of requests that have generated so many tokens, in two tensors, each copied at once."""
        params = [request.params for request, _ in requests]
        floats = [[p.temperature for p in params], [p.top_p for p in params]]
        integers = [[p.top_k for p in params], [request.seed for request, _ in requests], [n for _, n in requests]]
        return cls(*torch.tensor(floats, device=device), *torch.tensor(integers, device=device))


def sample_filtered(logits: Tensor, rows: Choices) -> Tensor:
    """Next tokens (B,) after logits (B, V), each row by its own choices. Rows of temperature 0 are greedy."""
    scores = scaled(logits, rows.temperature)
    lowest = threshold(scores, rows.top_k, rows.top_p)  # (B, 1)
    return noisy(scores, rows).masked_fill(scores < lowest, -torch.inf).argmax(-1)


def scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logits (B, V) over each row's temperature (B,); temperature 0 leaves them as they are."""
    return logits / torch.where(temperature > 0, temperature, 1.0)[:, None]


def noisy(scores: Tensor, rows: Choices) -> Tensor:
    """Scores (B, V) plus each row's own noise; greedy rows get none."""
    noise = gumbel(rows.seed, rows.step, scores.shape[-1])
    return torch.where(rows.temperature[:, None] > 0, scores + noise, scores)


def threshold(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The lowest score (B, 1) that is kept, by each row's top_k (B,), then top_p (B,).

    Both filters keep the ids whose score is at least that of the last one kept, ties included, so the set does not
    depend on the order in which a sort leaves equal scores. top_p counts the probability *before* an id: the one that
    crosses top_p is kept, and so there is always at least one. Nucleus sampling: Holtzman et al. 2020, section 3.1.
    """
    V = scores.shape[-1]
    descending = scores.sort(-1, descending=True).values  # (B, V)
    k = torch.where(top_k > 0, top_k, V).clamp(max=V)[:, None].long()  # (B, 1)
    kth = descending.gather(-1, k - 1)  # (B, 1)
    probs = descending.masked_fill(descending < kth, -torch.inf).softmax(-1)
    before = probs.cumsum(-1) - probs  # (B, V) probability of all ids ahead of this one
    kept = (before < top_p[:, None]).sum(-1, keepdim=True)  # (B, 1) how many top_p keeps
    by_p = descending.gather(-1, kept.clamp(min=1) - 1)
    # A cumulative sum in float32 may reach 1.0 before the last id: top_p = 1 must not filter for that.
    by_p = torch.where(top_p[:, None] < 1, by_p, -torch.inf)
    return torch.maximum(kth, by_p)


def gumbel(seed: Tensor, step: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise (B, V), float32, from seed (B,) int64 and step (B,) int64.

    -log(E) of a standard exponential E = -log(1 - u), with u in (0, 1) from 32 hashed bits. For u < 2^-10, 1 - u would
    lose the low bits of u in float32, and these are the highest noises, the ones that win: there E is u + u^2 / 2.
    """
    ids = torch.arange(vocab_size, device=seed.device)
    bits = random_bits(seed[:, None], step[:, None], ids)  # (B, V)
    u = ((bits | 1).float() * 2.0**-32).clamp(max=1 - 2.0**-24)  # never 0, never 1
    exponential = torch.where(u < 2.0**-10, u + 0.5 * u * u, -torch.log(1 - u))
    return -exponential.log()


def random_bits(seed: Tensor, step: Tensor, ids: Tensor) -> Tensor:
    """32 random bits for each (seed, step, id), as int64; the arguments broadcast.

    Integers alone, modulo 2^32, so that every device and language gives the same bits. Two words are made of seed and
    step, and each id is mixed with both: one word of 32 bits would repeat a whole row of noise too soon.
    """
    low, high = seed & _WORD, (seed >> 32) & _WORD
    first = mix(mix(mix(low ^ 0x9E3779B9) ^ high) ^ (step & _WORD))
    second = mix(mix(mix(low ^ 0x85EBCA6B) ^ high) ^ (step & _WORD))
    return mix(mix(ids ^ first) ^ second)


def mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words that spreads each bit over all: "lowbias32", C. Wellons, hash-prospector."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _WORD
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _WORD
    return x ^ (x >> 16)
