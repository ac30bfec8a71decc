"""Reading and writing keys and values that lie in pages: Triton kernels. Chapter 3.

A page holds neighbouring tokens of one row, head by head: pools are (pages, H, page, D). A row's block table names its
pages in order. paged_attention_torch.py has the same functions in PyTorch: the reference, and what runs without Triton.
Online softmax: Milakov and Gimelshein 2018, section 3. Splitting the context: "Flash-Decoding", Dao et al. 2023.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanoinfer.kernels.launcher import Launcher


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
    q, k_pool, v_pool, tables, lengths, out, parts, done, q_stride, table_stride, scale,
    H: tl.constexpr, D: tl.constexpr, D_POWER: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (b, h, s) attends from row b's query, head h, to split s of its context; the last to arrive joins them.

    Token t of each tile has a running maximum, sum and output of its own, as if tiles of one token were read by TILE
    readers. So nothing in the loop waits for another token, and one join at the end serves tokens and splits alike.
    """
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row).to(tl.int32)
    tiles = (length + TILE - 1) // TILE
    per_split = (tiles + SPLITS - 1) // SPLITS
    first = split * per_split * TILE
    end = tl.minimum(first + per_split * TILE, length)  # an empty split has end <= first

    d = tl.arange(0, D_POWER)  # (D,)
    query = tl.load(q + row * q_stride + head * D + d, mask=d < D, other=0.0).to(tl.float32) * scale
    maximum = tl.full((TILE,), -3e38, dtype=tl.float32)  # below all scores, and finite: -inf less -inf would be NaN
    total = tl.zeros((TILE,), dtype=tl.float32)
    acc = tl.zeros((TILE, D_POWER), dtype=tl.float32)

    for start in tl.range(first, end, TILE, num_stages=STAGES):  # the next tiles are on their way while one is used
        token = start + tl.arange(0, TILE)  # (TILE,)
        inside = token < end
        page = tl.load(tables + row * table_stride + token // PAGE, mask=inside, other=0).to(tl.int64)
        at = (page * H + head) * PAGE * D + (token % PAGE) * D  # (TILE,)
        mask = inside[:, None] & (d < D)[None, :]
        keys = tl.load(k_pool + at[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)  # (TILE, D)
        # The mask is on the values too, not only on their scores: weight 0 times NaN would be NaN.
        values = tl.load(v_pool + at[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)  # (TILE, D)
        scores = tl.where(inside, tl.sum(keys * query[None, :], 1), -float("inf"))  # (TILE,)
        higher = tl.maximum(maximum, scores)
        weight, rescale = tl.exp(scores - higher), tl.exp(maximum - higher)  # rescale: what the old maximum counted
        acc = acc * rescale[:, None] + values * weight[:, None]
        total = total * rescale + weight
        maximum = higher

    top = tl.max(maximum, 0)
    share = tl.exp(maximum - top)
    acc_sum, total_sum = tl.sum(acc * share[:, None], 0), tl.sum(total * share, 0)  # (D,) and ()
    n = row * H + head
    joins = True
    if SPLITS > 1:
        part = parts + (n * SPLITS + split) * (D + 2)  # output, maximum and sum of one split
        tl.store(part + d, acc_sum, mask=d < D)
        tl.store(part + D, top)
        tl.store(part + D + 1, total_sum)
        tl.debug_barrier()  # all threads have stored before one of them says so
        joins = tl.atomic_add(done + n, 1) == SPLITS - 1
        if joins:
            # Past the multiprocessor's own cache, which may be stale.
            each = parts + (n * SPLITS + tl.arange(0, SPLITS)) * (D + 2)  # (SPLITS,)
            maxima = tl.load(each + D, cache_modifier=".cg")
            weighs = tl.exp(maxima - tl.max(maxima, 0))
            accs = tl.load(each[:, None] + d[None, :], mask=(d < D)[None, :], other=0.0, cache_modifier=".cg")
            acc_sum = tl.sum(accs * weighs[:, None], 0)
            total_sum = tl.sum(tl.load(each + D + 1, cache_modifier=".cg") * weighs, 0)
            tl.store(done + n, 0)  # for the next launch
    if joins:
        result = acc_sum / tl.maximum(total_sum, 1e-30)  # a row of length 0 gives 0, not NaN
        tl.store(out + n * D + d, result.to(out.dtype.element_ty), mask=d < D)


_write, _attend = Launcher(_write_kernel, num_warps=4), Launcher(_attend_kernel, num_warps=2)


def write_pages(k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """Put new keys and values (N, H, D) into their slots (N,) int64 of the pools (pages, H, page, D)."""
    N, H, D = k.shape
    power = 1 << (H * D - 1).bit_length()  # the next power of two
    tensors, strides = (k, v, k_pool, v_pool, slots), (k.stride(0), v.stride(0))
    _write((N, 1, 1), tensors, strides, H=H, D=D, PAGE=k_pool.shape[2], HD_POWER=power)


def attend_pages(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, lengths: Tensor, done: Tensor, splits: int = 1
) -> Tensor:
    """Attention of one query a row, q (B, H, D), over the first `lengths` (B,) tokens of its pages -> (B, H, D).

    tables: (B, width) int32, the pages of each row in order; entries past the length are not read. done: at least
    (B * H,) int32 zeros, which are zeros again afterwards. Arithmetic is in float32. A row of length 0 gives zeros.
    """
    B, H, D = q.shape
    out = torch.empty(B, H, D, dtype=q.dtype, device=q.device)
    parts = torch.empty(B * H * splits * (D + 2), dtype=torch.float32, device=q.device) if splits > 1 else out
    # A whole context streams through small tiles, some ahead of their use; a split's few tokens come all at once.
    tile, stages = (32, 3) if splits == 1 else (64, 1)
    tensors = q, k_pool, v_pool, tables, lengths, out, parts, done
    _attend(
        (B, H, splits), tensors, (q.stride(0), tables.stride(0), D**-0.5), H=H, D=D, D_POWER=1 << (D - 1).bit_length(),
        PAGE=k_pool.shape[2], TILE=tile, SPLITS=splits, STAGES=stages,
    )  # fmt: skip
    return out
