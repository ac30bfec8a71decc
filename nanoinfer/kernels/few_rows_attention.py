"""Attention of one new token a row over its pages, in one kernel with the join of its parts. Chapter 6.

A program holds a whole tile of a context at once, and asks for it before it waits: all of it but the newest token's
key and value has been there since earlier steps. So a text of one tile needs no join, and a longer one as many parts
as it has tiles, not as the longest text might.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoinfer.kernels.few_rows import begin, wait


@triton.jit
def attend_kernel(
    q, k_pool, v_pool, tables, row, positions, out, parts, done, table_stride, scale,
    H: tl.constexpr, D: tl.constexpr, D_POWER: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (b, h, s) attends from row b's query, head h, to tile s of its text; the last to arrive joins them."""
    begin(EARLY)
    b, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    position = tl.load(positions + b).to(tl.int32)
    splits = position // TILE + 1  # of this text
    if split < splits:
        d, t = tl.arange(0, D_POWER), split * TILE + tl.arange(0, TILE)
        inner = d < D
        table = tables + tl.load(row + b) * table_stride
        page = tl.load(table + t // PAGE, mask=t <= position, other=0).to(tl.int64)  # (TILE,)
        at = ((page * H + head) * PAGE + t % PAGE)[:, None] * D + d[None, :]
        old = (t < position)[:, None] & inner[None, :]
        # The mask is on the values too, not only on their scores: weight 0 times NaN would be NaN.
        keys, values = tl.load(k_pool + at, mask=old, other=0.0), tl.load(v_pool + at, mask=old, other=0.0)
        newest = tl.load(table + position // PAGE).to(tl.int64)
        newest = ((newest * H + head) * PAGE + position % PAGE) * D + d
        wait(EARLY)
        n = b * H + head
        query = tl.load(q + n * D + d, mask=inner, other=0.0).to(tl.float32) * scale
        key, value = tl.load(k_pool + newest, mask=inner, other=0.0), tl.load(v_pool + newest, mask=inner, other=0.0)
        new = (t == position)[:, None]
        keys = tl.where(new, key[None, :], keys).to(tl.float32)
        values = tl.where(new, value[None, :], values).to(tl.float32)
        scores = tl.where(t <= position, tl.sum(keys * query[None, :], 1), -float("inf"))  # (TILE,)
        top = tl.max(scores, 0)
        weights = tl.exp(scores - top)
        acc, total = tl.sum(values * weights[:, None], 0), tl.sum(weights, 0)  # (D,) and ()
        joins = True
        if SPLITS > 1:  # noqa: SIM102, known when it is compiled
            if splits > 1:
                part = parts + (n * SPLITS + split) * (D + 2)  # output, maximum and sum of one tile
                tl.store(part + d, acc, mask=inner)
                tl.store(part + D, top)
                tl.store(part + D + 1, total)
                tl.debug_barrier()  # all threads have stored before one of them says so
                joins = tl.atomic_add(done + n, 1) == splits - 1
                if joins:
                    s = tl.arange(0, SPLITS)
                    each, there = parts + (n * SPLITS + s) * (D + 2), s < splits
                    maxima = tl.load(each + D, mask=there, other=-float("inf"), cache_modifier=".cg")
                    weighs = tl.exp(maxima - tl.max(maxima, 0))
                    mask = there[:, None] & inner[None, :]
                    accs = tl.load(each[:, None] + d[None, :], mask=mask, other=0.0, cache_modifier=".cg")
                    totals = tl.load(each + D + 1, mask=there, other=0.0, cache_modifier=".cg")
                    acc, total = tl.sum(accs * weighs[:, None], 0), tl.sum(totals * weighs, 0)
                    tl.store(done + n, 0)  # for the next launch
        if joins:
            tl.store(out + n * D + d, (acc / total).to(out.dtype.element_ty), mask=inner)
