"""The cheapest way to choose the next tokens of a batch: a sort costs more than the model. Chapter 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from nanoinfer.engine import sampling
from nanoinfer.records import SamplingParams

Sampler = Callable[[Tensor, Any], Tensor]  # logits (B, V), and how each row chooses -> next tokens (B,) int64


def greedy(logits: Tensor, rows: Any) -> Tensor:
    """The highest logit of each row; among equals the lowest id."""
    return logits.argmax(-1)


def sample(logits: Tensor, rows: Any) -> Tensor:
    """Each row by its own temperature and seed, without a filter. Rows of temperature 0 are greedy."""
    return sampling.noisy(sampling.scaled(logits, rows.temperature), rows).argmax(-1)


class Samplers(NamedTuple):
    """The cheapest way for each kind of batch. Which one serves a row changes none of its tokens."""

    greedy: Sampler = greedy  # no row samples
    unfiltered: Sampler = sample  # no row filters
    filtered: Sampler = sampling.sample_filtered


SAMPLERS = Samplers()


def filters(params: SamplingParams) -> bool:
    """Whether top_k or top_p may drop a token: a greedy row takes the highest logit under any filter."""
    return not params.greedy and (params.top_k > 0 or params.top_p < 1)


def cheapest(params: SamplingParams) -> int:
    """Which of `Samplers` is the first that serves a sequence."""
    return 0 if params.greedy else 2 if filters(params) else 1
