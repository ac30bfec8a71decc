"""Exercise 7.2: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition

Answer = tuple[Tensor, Tensor]


def first_unequal(scores: Tensor, noise: Tensor, drafts: Tensor) -> Answer:
    """The first place where they part, by an argmax over unequal places; the last place parts always."""
    total = scores.clone()
    total += noise
    chosen = torch.max(total, dim=2).indices
    other = torch.nn.functional.pad(drafts, (0, 1), value=-2) != chosen
    last = other.byte().argmax(1, keepdim=True)
    columns = torch.arange(chosen.size(1)).expand_as(chosen)
    return chosen.masked_fill(columns > last, -1), last.squeeze(1) + 1


def place_by_place(scores: Tensor, noise: Tensor, drafts: Tensor) -> Answer:
    """All rows together, one place after the other, with those that still go on."""
    going = torch.ones(len(drafts), dtype=torch.bool)
    columns, counts = [], torch.zeros(len(drafts), dtype=torch.int64)
    for place in range(scores.size(1)):
        mine = (scores[:, place] + noise[:, place]).argmax(1)
        columns.append(torch.where(going, mine, torch.tensor(-1)))
        counts = counts + going.long()
        if place < drafts.size(1):
            going = going & (mine == drafts[:, place])
    return torch.stack(columns, dim=1), counts


EQUIVALENT: dict[str, str] = {}


def _turned(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Places for rows, and rows for places."""
    return tuple(tensor.transpose(0, 1).contiguous() for tensor in tensors)


@edition(
    "by-place",
    "places are lines and rows are columns, and the answer is a dict",
    args=_turned,
    back=_turned,
    result=lambda result, *plain: {"tokens": result[0].T.contiguous(), "counts": result[1]},
    axes=("place", "row"),
)
def by_place(scores: Tensor, noise: Tensor, drafts: Tensor) -> dict[str, Tensor]:
    """Under "counts", (R,) int64, by how many tokens each row goes on, and under "tokens" these, (k + 1, R) int64.

    Places are lines here, and rows are columns. drafts: (k, R) int64, what somebody has guessed for the next k places
    of each row's text; -1 stands for no draft, at the bottom of rows that have fewer; k may be 0, and R is at least 1.
    scores: (k + 1, R, V) float32, what the model says of each place, where it has read the row's text and all of its
    drafts ahead of that place. noise: (k + 1, R, V) float32, each place's own noise: that which plain decoding would
    use in this place of this row; it is 0 where a row is greedy. The token of a place is the id whose score plus noise,
    added in float32, is highest; among equals the lowest id.
    A draft is kept if it is the token of its place, and all drafts before it are kept. A row goes on by the drafts that
    are kept and by one token more: that of the place after them; below that its column has -1. A row with n drafts
    has n + 1 places; what stands after these in scores and noise may be anything, NaN too.
    """
    tokens = (scores + noise).argmax(-1)
    counts = (tokens[:-1] == drafts).long().cumprod(0).sum(0) + 1
    below = torch.arange(len(tokens), device=tokens.device)[:, None] >= counts
    return {"tokens": tokens.masked_fill(below, -1), "counts": counts}
