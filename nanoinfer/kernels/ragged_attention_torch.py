"""The ragged kernel in plain PyTorch, with the same signatures: slow, right, and to be read first. Chapter 5."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.kernels.paged_attention_torch import gather_pages
from nanoinfer.model.batch import Batch


def work_list(batch: Batch) -> None:
    """The Triton kernel's list of work: here rows are taken as they come."""


def attend_ragged(q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, batch: Batch, work: None) -> Tensor:
    """Causal attention of any number of new tokens a row, q (N, H, D), over its pages -> (N, H, D).

    tables: (rows, width) int32 of all rows. A token at position p reads the first p + 1 tokens of its row's pages,
    which hold the new ones already.
    """
    starts = batch.starts
    tables = tables[batch.row[starts[:-1].clamp(max=len(q) - 1)]]  # (B, width); an empty last row begins at N
    keys, values = gather_pages(k_pool, tables), gather_pages(v_pool, tables)  # (B, H, S, D)
    positions = batch.padded(batch.positions)  # (B, T)
    slot = torch.arange(keys.shape[2], device=q.device)  # (S,)
    unwritten = (slot > positions.amax(1, keepdim=True))[:, None, :, None]  # (B, 1, S, 1) may hold anything, NaN too
    keys, values = keys.masked_fill(unwritten, 0.0), values.masked_fill(unwritten, 0.0)
    visible = slot <= positions[:, None, :, None]  # (B, 1, T, S)
    queries = batch.padded(q).transpose(1, 2)  # (B, H, T, D)
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible)
    return batch.packed(out.transpose(1, 2))
