"""The kernels of chapter 3 in plain PyTorch, with the same signatures: slow, right, and to be read first."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def write_pages(k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """Put new keys and values (N, H, D) into their slots (N,) int64 of the pools (pages, H, page, D)."""
    page = k_pool.shape[2]
    k_pool[slots // page, :, slots % page] = k
    v_pool[slots // page, :, slots % page] = v


def attend_pages(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, lengths: Tensor, done: Tensor, splits: int = 1
) -> Tensor:
    """Attention of one query a row, q (B, H, D), over the first `lengths` (B,) tokens of its pages -> (B, H, D).

    tables: (B, width) int32. `done` and `splits` change nothing here. A row of length 0 gives zeros.
    """
    keys, values = gather_pages(k_pool, tables), gather_pages(v_pool, tables)  # (B, H, S, D)
    inside = torch.arange(keys.shape[2], device=q.device) < lengths[:, None]  # (B, S)
    values = values.masked_fill(~inside[:, None, :, None], 0.0)  # weight 0 times NaN would be NaN
    scores = torch.einsum("bhd,bhsd->bhs", q.float(), keys.float()) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~inside[:, None], -torch.inf)
    weights = F.softmax(scores, dim=-1).nan_to_num(0.0)  # a row of length 0 has nothing to weigh
    return torch.einsum("bhs,bhsd->bhd", weights, values.float()).to(q.dtype)


def gather_pages(pool: Tensor, tables: Tensor) -> Tensor:
    """The pages of each row side by side: pool (pages, H, page, D), tables (B, width) -> (B, H, width * page, D)."""
    B, width = tables.shape
    _, H, page, D = pool.shape
    return pool[tables.long()].transpose(1, 2).reshape(B, H, width * page, D)
