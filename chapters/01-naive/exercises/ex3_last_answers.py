"""Exercise 1.3: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition


def row_by_row(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> Tensor:
    """A loop over the rows, one vector at a time."""
    head = wte.narrow(0, 0, vocab_size)
    return torch.stack([head @ row[n - 1] for row, n in zip(hidden, lengths.tolist(), strict=True)])


def by_gather(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> Tensor:
    """gather along the columns; every logit is computed, the padding columns are cut off afterwards; float64."""
    place = (lengths - 1)[:, None, None].expand(-1, 1, hidden.shape[2])
    logits = torch.einsum("bc,vc->bv", hidden.gather(1, place)[:, 0].double(), wte.double())
    return logits[:, :vocab_size]


EQUIVALENT: dict[str, str] = {}


def _time_first(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> tuple[Tensor, Tensor, Tensor, int]:
    return hidden.transpose(0, 1), lengths, wte, vocab_size


@edition("time-first", "the columns stand before the rows: hidden is (T, B, C)", args=_time_first, back=_time_first)
def last_logits(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> Tensor:
    """Logits (B, vocab_size) after each row's last real token.

    hidden (T, B, C), of any floating type: the model's output at every column; rows are padded on the right, and what
    stands in padded columns is arbitrary. lengths (B,) int64: real tokens of each row, from 1 to T. wte (rows, C): the
    token embedding, which is also the head; it may have more rows than the vocabulary, for speed: what stands in these
    is arbitrary, too. A NaN in a row's last real token must show up in its logits.
    """
    rows = torch.arange(hidden.shape[1], device=hidden.device)
    return hidden[lengths - 1, rows] @ wte[:vocab_size].T
