"""Attention in the kernel that makes a token in one launch: each program of a head has a part of it. Chapter 6.

Parts go to all programs of the head as words, and each of them joins them for itself.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from nanoinfer.labs.one_kernel.parts import LINE, TILE
from nanoinfer.labs.one_kernel.words import STAMP, put, stamped, value_of, wait


@gluon.jit
def attend(
    q_words, part, keys, values, k_place, v_place, here, known, stamp, failed, code, room, AT: gl.constexpr,
    S: gl.constexpr,
):  # fmt: skip
    """This program's part of its head's context: attention's output, maximum and sum go out as words.

    Each warp has a maximum and sum of its own; they are joined once, at the end. The new token counts as a ninth warp.
    """
    D: gl.constexpr = S.D
    REPEATS: gl.constexpr = S.N * D // TILE
    PER: gl.constexpr = 256 // D  # tokens that a warp reads at a time
    qkv, tops, totals, outs = room
    d = gl.arange(0, D, gl.SliceLayout(0, AT))
    e = gl.arange(0, 256, LINE)
    qkv.store(value_of(wait(q_words + e, e < 3 * D, stamp, failed, code, 1, STAMP, S.POLLS)))
    query = qkv.slice(0, D).load(gl.SliceLayout(0, AT)) * S.SCORE
    new_key = qkv.slice(D, D).load(gl.SliceLayout(0, AT))
    new_value = qkv.slice(2 * D, D).load(gl.SliceLayout(0, AT))
    gl.store(k_place + d, new_key.to(k_place.dtype.element_ty), mask=(d < D) & here)
    gl.store(v_place + d, new_value.to(v_place.dtype.element_ty), mask=(d < D) & here)
    newest = gl.where(here, gl.sum(query * new_key, 0), -1e30)
    scores = gl.sum(keys.to(gl.float32) * query[None, :], 1)
    read = gl.reshape(known, (REPEATS, 8, PER))
    scores = gl.where(read, gl.reshape(scores, (REPEATS, 8, PER)), -1e30)  # of each warp
    top = gl.max(gl.max(scores, 0), 1)  # (8,)
    weight = gl.where(read, gl.exp(scores - gl.expand_dims(top[:, None], 0)), 0.0)
    total = gl.sum(gl.sum(weight, 0), 1)
    weight = gl.convert_layout(gl.reshape(weight, (S.N,)), gl.SliceLayout(1, AT), assert_trivial=True)
    out = values.to(gl.float32) * weight[:, None]
    out = gl.sum(gl.sum(gl.reshape(out, (REPEATS, 8, PER, D)), 0), 1)  # (8, D)
    tops.store(top)
    totals.store(total)
    outs.store(out)
    COLUMN: gl.constexpr = gl.BlockedLayout([8, 1], [1, 32], [1, 8], [1, 0])  # a thread has all warps' numbers
    top = tops.load(gl.SliceLayout(1, COLUMN))
    highest = gl.maximum(gl.max(top, 0), newest)
    weight = gl.exp(top - highest)
    own = gl.where(here, gl.exp(newest - highest), 0.0)
    total = gl.sum(totals.load(gl.SliceLayout(1, COLUMN)) * weight, 0) + own
    out = gl.sum(outs.load(COLUMN) * weight[:, None], 0)
    out += qkv.slice(2 * D, D).load(gl.SliceLayout(0, COLUMN)) * own
    column = gl.arange(0, D, gl.SliceLayout(0, COLUMN))
    put(part + column, stamped(out, stamp), column < D, 256 - D)
    put(part + D + e, stamped(gl.where(e == 0, highest, total), stamp), e < 2)


@gluon.jit
def join(head_parts, stamp, failed, code, joined, S: gl.constexpr):
    """Attention's output of one head (D,), from the parts of all its P programs."""
    D: gl.constexpr = S.D
    e = gl.arange(0, S.JOIN, LINE)
    over = e - S.P * D
    which = gl.where(over < 0, e // D, over % 16)
    where = gl.where(over < 0, e % D, D + over // 16)
    used = (which < S.P) & (over < 32)
    words = wait(head_parts + which * (D + 2) + where, used, stamp, failed, code, S.JOIN // 256, STAMP, S.POLLS)
    joined.store(gl.where(used, value_of(words), gl.where(over < 16, -1e30, 0.0)))
    COLUMN: gl.constexpr = gl.BlockedLayout([16, 1], [1, 32], [1, 8], [1, 0])
    SPLIT: gl.constexpr = gl.SliceLayout(1, COLUMN)
    top = joined.slice(S.P * D, 16).load(SPLIT)
    total = joined.slice(S.P * D + 16, 16).load(SPLIT)
    weight = gl.exp(top - gl.max(top, 0))
    outs = joined.reshape([S.JOIN // D, D]).slice(0, 16).load(COLUMN)
    outs = gl.where((gl.arange(0, 16, SPLIT) < S.P)[:, None], outs, 0.0)
    return gl.sum(outs * weight[:, None], 0) / gl.sum(total * weight, 0)
