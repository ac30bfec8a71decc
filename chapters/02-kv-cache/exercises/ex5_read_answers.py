"""Exercise 2.5: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises.exercise import edition


def row_by_row(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Loops; each query is handed the slots that it reads, and no others."""
    out = torch.zeros_like(q)
    for b, t, h in ((b, t, h) for b in range(len(q)) for t in range(q.shape[1]) for h in range(q.shape[2])):
        end = int(positions[b, t]) + 1
        if end:
            weights = (keys[b, :end, h] @ q[b, t, h] / q.shape[-1] ** 0.5).softmax(0)
            out[b, t, h] = weights @ values[b, :end, h]
    return out


def by_sdpa(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """PyTorch's own attention, a query at a time, over a cut that has no mask at all."""
    parts = []
    for b in range(len(q)):
        for t, end in enumerate((positions[b] + 1).tolist()):
            heads = (x.transpose(0, 1) for x in (q[b, t : t + 1], keys[b, :end], values[b, :end]))
            parts.append(F.scaled_dot_product_attention(*heads)[:, 0] if end else torch.zeros_like(q[b, t]))
    return torch.stack(parts).view(q.shape)


def replaced_first(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """einsum, float64; hidden keys and values are zeroed for each query before anything is computed."""
    hidden = torch.arange(keys.shape[1], device=q.device) > positions[:, :, None]  # (B, T, S)
    own_keys = keys.double()[:, None].masked_fill(hidden[..., None, None], 0.0)  # (B, T, S, H, D)
    own_values = values.double()[:, None].masked_fill(hidden[..., None, None], 0.0)
    scores = torch.einsum("bthd,btshd->bths", q.double(), own_keys) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(hidden[:, :, None], -torch.inf).softmax(-1)
    weights = weights.masked_fill(hidden[:, :, None], 0.0)
    return torch.einsum("bths,btshd->bthd", weights, own_values)


def _there(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
    return q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), positions + 1


def _back(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    return q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), lengths - 1


@edition(
    "heads-first",
    "heads stand before tokens and slots, and lengths are given in place of positions",
    args=_there,
    back=_back,
    result=lambda out, *args: out.transpose(1, 2),
    axes=("row", "head", "column", "channel"),
)
def read(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    """Attention of a step's queries over their rows of the cache: q (B, H, T, D) -> (B, H, T, D), of any floating type.

    keys, values (B, H, S, D): all slots of each row; what this step brings is written already.
    lengths (B, T) int64: a query reads its row's first so many slots, and nothing else. With 0 it is padding: it reads
    no slot, and its result is zero. Slots that it does not read may hold anything: an old text, infinity, NaN.
    What is NaN in a query comes out of it, and of no other.
    """
    hidden = torch.arange(keys.shape[2], device=q.device) >= lengths[:, None, :, None]  # (B, 1, T, S)
    scores = (q @ keys.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    products = scores.softmax(-1)[..., None] * values[:, :, None]
    return products.masked_fill(hidden[..., None], 0.0).sum(3)
