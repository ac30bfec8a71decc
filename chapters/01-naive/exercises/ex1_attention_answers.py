"""Exercise 1.1: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises.exercise import edition


def query_by_query(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """Loops over rows, queries and heads; only the keys that are read are ever touched."""
    out = torch.zeros_like(v)
    for b, (T, H) in ((b, q.shape[1:3]) for b in range(len(q))):
        for t in range(T):
            read = positions[b] <= positions[b, t]
            for h in range(H):
                scores = (k[b, read, h] @ q[b, t, h]) * q.shape[-1] ** -0.5
                out[b, t, h] = scores.softmax(0) @ v[b, read, h]
    return out


def by_sdpa(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """PyTorch's own attention with a boolean mask of what is read."""
    read = (positions[:, :, None] >= positions[:, None, :])[:, None]
    heads = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*heads, attn_mask=read).transpose(1, 2)


def in_double(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """einsum, float64, and a mask that is added."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()).div_(q.shape[-1] ** 0.5)
    later = positions[:, None, None, :] > positions[:, None, :, None]
    scores += torch.zeros_like(scores).masked_fill(later, -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.double())


def _heads_first(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), positions


@edition(
    "heads-first",
    "the heads stand before the tokens",
    args=_heads_first,
    back=_heads_first,
    result=lambda out, *args: out.transpose(1, 2),
    axes=("row", "head", "column", "channel"),
)
def attention(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """Causal attention: q, k, v (B, H, T, D) -> (B, H, T, D), of any floating type.

    positions (B, T) int64: where each column's token stands in its own text, no two of a row at the same place. A query
    reads the keys of its own row whose position is at most its own. Vaswani et al. 2017, section 3.2.1.
    """
    later = positions[:, None, None, :] > positions[:, None, :, None]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ v
