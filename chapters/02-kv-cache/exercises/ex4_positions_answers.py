"""Exercise 2.4: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition


def by_masks(real: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """For each column a sum over the columns before it; int32 on the way, in place."""
    T = real.shape[1]
    earlier = torch.ones(T, T, device=real.device).triu(1)
    positions = (real.float() @ earlier).int().add_(before.int()[:, None]).mul_(real)
    return positions.long(), (before.int() + real.sum(1, dtype=torch.int32)).long()


def from_the_first_token(real: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Columns less the first real one: a row's real tokens stand side by side."""
    columns = torch.arange(real.shape[1], device=real.device)
    first = real.int().argmax(1)  # (B,) of equal values the first
    positions = torch.where(real, columns - first[:, None] + before[:, None], 0)
    return positions, before + real.count_nonzero(1)


EQUIVALENT: dict[str, str] = {}


def _turned(real: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    return real.T, before


@edition(
    "time-first",
    "columns stand before rows: `real` is (T, B)",
    args=_turned,
    back=_turned,
    result=lambda found, *args: (found[0].T, found[1]),
    axes=("of positions, next: number", "column", "row"),
)
def places(real: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """The position of every column, (T, B) int64, and of each row's next token, (B,) int64.

    real (T, B) bool: which columns of which row hold a token; the others are padding, on the left, on the right, or on
    both sides. before (B,) int64: how many tokens of each row are in the cache already. Padded columns get position 0.
    """
    counted = real.cumsum(0)
    return (before + counted - 1).masked_fill(~real, 0), before + counted[-1]
