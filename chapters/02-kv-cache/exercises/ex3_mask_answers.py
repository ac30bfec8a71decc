"""Exercise 2.3: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition


def line_by_line(positions: Tensor, longest: int, multiple: int, slots: int) -> Tensor:
    """Loops; each line is filled from the left."""
    B, T = positions.shape
    S = multiple
    while longest > S:
        S += multiple
    mask = torch.zeros(B, 1, T, min(S, slots), dtype=torch.bool, device=positions.device)
    for b in range(B):
        for t in range(T):
            mask[b, 0, t, : int(positions[b, t]) + 1] = True
    return mask


def rows_of_a_triangle(positions: Tensor, longest: int, multiple: int, slots: int) -> Tensor:
    """A triangle of all slots by all slots, of which each query takes the line of its position."""
    S = min((longest + multiple - 1) // multiple * multiple, slots)
    triangle = torch.ones(S, S, device=positions.device).tril().bool()
    return triangle[positions].unsqueeze(1)


@edition(
    "as-numbers",
    "the mask is numbers that are added to the scores, in place of truths",
    result=lambda mask, *args: torch.zeros(mask[:, 0].shape).masked_fill(~mask[:, 0], -torch.inf),
    axes=("row", "query", "slot"),
)
def visible(positions: Tensor, longest: int, multiple: int, slots: int) -> Tensor:
    """What is added to the scores of the slots that are read: (B, T, S) float32, 0 or minus infinity.

    0 where a query may read a slot of its own row, minus infinity where it may not.
    positions (B, T) int64: where each query's token stands in its own text; it has been written to that slot already.
    longest: no position of this step is `longest` or higher. slots: of a row of the cache. S: how many slots are read,
    the lowest multiple of `multiple` that holds the first `longest` slots, but never more than there are.
    """
    S = min(slots, -(-longest // multiple) * multiple)
    later = torch.arange(S, device=positions.device) > positions[:, :, None]
    return torch.zeros(later.shape, device=positions.device).masked_fill(later, -torch.inf)
