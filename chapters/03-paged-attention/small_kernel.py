"""The smallest Triton kernel that is right: decode attention over pages, one token after the other. Needs Triton.

Without a GPU set TRITON_INTERPRET=1 before Python starts; there are no wheels of Triton for macOS and Windows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def attend_kernel(
    q, k_pool, v_pool, tables, lengths, out, width, H: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
):
    """Program (b, h) reads the pages of row b, and of each its head's part."""
    row, head, d = tl.program_id(0), tl.program_id(1), tl.arange(0, D)
    query = tl.load(q + (row * H + head) * D + d).to(tl.float32) * D**-0.5  # (D,)
    maximum, total, acc = -float("inf"), 0.0, tl.zeros((D,), dtype=tl.float32)
    for token in range(tl.load(lengths + row)):
        page = tl.load(tables + row * width + token // BLOCK).to(tl.int64)
        at = ((page * H + head) * BLOCK + token % BLOCK) * D + d  # (D,)
        score = tl.sum(query * tl.load(k_pool + at).to(tl.float32))
        higher = tl.maximum(maximum, score)
        weight, rescale = tl.exp(score - higher), tl.exp(maximum - higher)
        acc = acc * rescale + weight * tl.load(v_pool + at).to(tl.float32)
        total = total * rescale + weight
        maximum = higher
    tl.store(out + (row * H + head) * D + d, acc / tl.maximum(total, 1e-30))


def attend(q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, lengths: Tensor) -> Tensor:
    """One query a row, q (B, H, D), over the first `lengths` (B,) tokens of its pages -> (B, H, D).

    Pools (pages, H, BLOCK, D), tables (B, width) int32. D must be a power of two, and a row of length 0 gives zeros.
    """
    B, H, D = q.shape
    q, tables, out = q.contiguous(), tables.contiguous(), torch.empty(B, H, D, dtype=q.dtype, device=q.device)
    attend_kernel[(B, H)](q, k_pool, v_pool, tables, lengths, out, tables.shape[1], H=H, D=D, BLOCK=k_pool.shape[2])
    return out
