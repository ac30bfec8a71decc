"""Reading and writing keys and values that lie in pages: Triton kernels. Chapter 3.

A page holds neighbouring tokens of one row, head by head: pools are (pages, H, page, D). A row's block table names its
pages in order. paged_twins.py has the same functions in PyTorch; they run where there is no Triton, and are the oracle.
Online softmax: Milakov and Gimelshein 2018, section 3. Splitting the context: "Flash-Decoding", Dao et al. 2023.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # tokens of a context that a program reads at a time


@triton.jit
def _write_kernel(
    k, v, k_pool, v_pool, slots, k_stride, v_stride, H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    HD_POWER: tl.constexpr,
):  # fmt: skip
    """Program n puts token n's keys and values, all heads, into its slot."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)  # page * PAGE + place; pages times strides pass 2^31
    at = tl.arange(0, HD_POWER)  # (H * D,) padded to a power of two
    head, d = at // D, at % D
    real = at < H * D
    target = (slot // PAGE) * H * PAGE * D + head * PAGE * D + (slot % PAGE) * D + d
    tl.store(k_pool + target, tl.load(k + token * k_stride + at, mask=real), mask=real)
    tl.store(v_pool + target, tl.load(v + token * v_stride + at, mask=real), mask=real)


@triton.jit
def _attend_kernel(
    q, k_pool, v_pool, tables, lengths, out, part_out, part_max, part_sum, q_stride, table_stride, scale,
    H: tl.constexpr, D: tl.constexpr, D_POWER: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Program (b, h, s) attends from row b's query, head h, to split s of its context, tile by tile."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row).to(tl.int32)
    tiles = (length + TILE - 1) // TILE
    per_split = (tiles + SPLITS - 1) // SPLITS
    first = split * per_split * TILE
    last = tl.minimum(first + per_split * TILE, length)  # an empty split has last <= first

    d = tl.arange(0, D_POWER)  # (D,)
    query = tl.load(q + row * q_stride + head * D + d, mask=d < D, other=0.0).to(tl.float32) * scale
    running_max = -float("inf")
    running_sum = 0.0
    acc = tl.zeros((D_POWER,), dtype=tl.float32)

    for start in range(first, last, TILE):
        token = start + tl.arange(0, TILE)  # (TILE,)
        inside = token < last
        page = tl.load(tables + row * table_stride + token // PAGE, mask=inside, other=0).to(tl.int64)
        at = (page * H + head) * PAGE * D + (token % PAGE) * D  # (TILE,)
        mask = inside[:, None] & (d < D)[None, :]
        keys = tl.load(k_pool + at[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)  # (TILE, D)
        scores = tl.where(inside, tl.sum(keys * query[None, :], 1), -float("inf"))  # (TILE,)
        new_max = tl.maximum(running_max, tl.max(scores, 0))
        weights = tl.exp(scores - new_max)  # (TILE,)
        rescale = tl.exp(running_max - new_max)  # what was summed under the old maximum
        # The mask is on the values too, not only on their scores: weight 0 times NaN would be NaN.
        values = tl.load(v_pool + at[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)  # (TILE, D)
        acc = acc * rescale + tl.sum(values * weights[:, None], 0)
        running_sum = running_sum * rescale + tl.sum(weights, 0)
        running_max = new_max

    if SPLITS == 1:
        result = acc / tl.maximum(running_sum, 1e-30)  # a row of length 0 gives 0, and harms nobody
        tl.store(out + (row * H + head) * D + d, result.to(out.dtype.element_ty), mask=d < D)
    else:
        part = (row * H + head) * SPLITS + split
        tl.store(part_out + part * D + d, acc, mask=d < D)
        tl.store(part_max + part, running_max)
        tl.store(part_sum + part, running_sum)


@triton.jit
def _join_kernel(part_out, part_max, part_sum, out, D: tl.constexpr, D_POWER: tl.constexpr, SPLITS: tl.constexpr):
    """Program n joins the splits of one row and head: each weighs by its sum under the common maximum."""
    n = tl.program_id(0).to(tl.int64)
    d, s = tl.arange(0, D_POWER), tl.arange(0, SPLITS)
    maxima = tl.load(part_max + n * SPLITS + s)  # (SPLITS,) -inf where a split is empty
    top = tl.max(maxima, 0)
    weight = tl.where(maxima == -float("inf"), 0.0, tl.exp(maxima - top))
    total = tl.sum(tl.load(part_sum + n * SPLITS + s) * weight, 0)
    mask = (d < D)[None, :]
    parts = tl.load(part_out + (n * SPLITS + s)[:, None] * D + d[None, :], mask=mask, other=0.0)  # (SPLITS, D)
    result = tl.sum(parts * weight[:, None], 0) / tl.maximum(total, 1e-30)
    tl.store(out + n * D + d, result.to(out.dtype.element_ty), mask=d < D)


def write_pages(k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """Put new keys and values (N, H, D) into their slots (N,) int64 of the pools (pages, H, page, D)."""
    N, H, D = k.shape
    power = triton.next_power_of_2(H * D)
    _write_kernel[(N,)](
        k, v, k_pool, v_pool, slots, k.stride(0), v.stride(0), H=H, D=D, PAGE=k_pool.shape[2], HD_POWER=power
    )


def attend_pages(q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, lengths: Tensor, splits: int = 1) -> Tensor:
    """Attention of one query a row, q (B, H, D), over the first `lengths` (B,) tokens of its pages -> (B, H, D).

    tables: (B, width) int32, the pages of each row in order; entries past the length are not read. Arithmetic is in
    float32. A row of length 0 gives zeros.
    """
    B, H, D = q.shape
    power = triton.next_power_of_2(D)
    out = torch.empty(B, H, D, dtype=q.dtype, device=q.device)
    n = B * H * splits if splits > 1 else 0  # partial results
    parts = torch.empty(n * (D + 2), dtype=torch.float32, device=q.device)
    part_out, part_max, part_sum = parts[: n * D], parts[n * D : n * (D + 1)], parts[n * (D + 1) :]
    _attend_kernel[(B, H, splits)](
        q, k_pool, v_pool, tables, lengths, out, part_out, part_max, part_sum, q.stride(0), tables.stride(0), D**-0.5,
        H=H, D=D, D_POWER=power, PAGE=k_pool.shape[2], TILE=TILE, SPLITS=splits, num_warps=2,
    )  # fmt: skip
    if splits > 1:
        _join_kernel[(B * H,)](part_out, part_max, part_sum, out, D=D, D_POWER=power, SPLITS=splits, num_warps=1)
    return out
