"""Exercise 1.4: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition


def row_by_row(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Python loops over rows and ids in place of tensor operations; float64."""
    found = []
    for row, k, p in zip(scores.tolist(), top_k.tolist(), top_p.tolist(), strict=True):
        ordered = sorted(row, reverse=True)
        lowest = ordered[min(k or len(row), len(row)) - 1]
        left = torch.tensor([s for s in ordered if s >= lowest], dtype=torch.float64).softmax(-1).tolist()
        total, count = 0.0, 0
        while count < len(left) and (p == 1 or count == 0 or total < p):
            total += left[count]
            count += 1
        found.append([ordered[count - 1]])
    return torch.tensor(found, dtype=torch.float64)


def ascending(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Sorted from low to high; what is removed is counted, not what is kept."""
    V = scores.shape[-1]
    rising = scores.sort(-1).values
    k = torch.where(top_k > 0, top_k, V).clamp(max=V)[:, None].long()
    kth = rising.gather(-1, V - k)
    probs = rising.masked_fill(rising < kth, -torch.inf).double().softmax(-1)
    ahead = probs.flip(-1).cumsum(-1).flip(-1) - probs
    removed = (ahead >= top_p[:, None].double()).sum(-1, keepdim=True).clamp(max=V - 1)
    by_p = torch.where(top_p[:, None] == 1, kth, rising.gather(-1, removed))
    return torch.where(by_p > kth, by_p, kth)


EQUIVALENT = {
    "by_p = descending.gather(-1, kept.clamp(min=0) - 1)": (
        "nothing is ahead of the first id, and 0 is below any top_p above 0: `kept` is at least 1 without the clamp"
    ),
    "kept = (before < top_p[:, None]).sum(-1, keepdim=True)".replace("<", "<="): (
        "it differs only where the running total equals top_p to the last bit, and that is decided by rounding"
    ),
}


@edition(
    "kept-ids",
    "the answer is a mask of the ids that are kept, not a threshold",
    result=lambda lowest, scores, top_k, top_p: scores >= lowest,
    axes=("row", "id"),
)
def kept_ids(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Which ids may be chosen, (B, V) bool, by each row's top_k (B,), then top_p (B,); scores (B, V).

    Both filters keep the ids whose score is at least that of the last one kept, ties included. top_p counts the
    probability *before* an id: the one that crosses top_p is kept. Nucleus sampling: Holtzman et al. 2020, section 3.1.
    """
    V = scores.shape[-1]
    ordered = scores.sort(-1, descending=True).values
    k = torch.where(top_k > 0, top_k, V).clamp(max=V)[:, None].long()
    passed = ordered >= ordered.gather(-1, k - 1)
    probs = ordered.masked_fill(~passed, -torch.inf).softmax(-1)
    ahead = probs.cumsum(-1) - probs
    within = (ahead < top_p[:, None]) | (top_p[:, None] == 1)
    within[:, 0] = True
    last = (within & passed).sum(-1, keepdim=True) - 1
    return scores >= ordered.gather(-1, last)
