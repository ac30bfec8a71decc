"""Exercise 3.6: correct variants, mutants that are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import triton.language as tl


def own_maxima(q, k_pool, v_pool, tables, lengths, out, width, H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr):
    """Every place of the page keeps a maximum, a sum and an output of its own, joined at the end: the engine's way."""
    place, d = tl.arange(0, PAGE), tl.arange(0, D)
    mine = (tl.program_id(0) * H + tl.program_id(1)) * D + d
    length = tl.load(lengths + tl.program_id(0))
    query = tl.load(q + mine).to(tl.float32) / D**0.5
    top, total = tl.full((PAGE,), -3e38, tl.float32), tl.zeros((PAGE,), tl.float32)
    acc = tl.zeros((PAGE, D), tl.float32)
    for page in range(tl.cdiv(length, PAGE)):
        real = page * PAGE + place < length
        block = tl.load(tables + tl.program_id(0) * width + page).to(tl.int64)
        at = (block * H + tl.program_id(1)) * PAGE * D + place[:, None] * D + d[None, :]
        keys = tl.load(k_pool + at, real[:, None], 0.0).to(tl.float32)
        scores = tl.where(real, tl.sum(keys * query, 1), float("-inf"))
        higher = tl.maximum(top, scores)
        weight, shrink = tl.exp(scores - higher), tl.exp(top - higher)
        acc = acc * shrink[:, None] + tl.load(v_pool + at, real[:, None], 0.0).to(tl.float32) * weight[:, None]
        total, top = total * shrink + weight, higher
    share = tl.exp(top - tl.max(top, 0))
    tl.store(out + mine, tl.sum(acc * share[:, None], 0) / tl.maximum(tl.sum(total * share, 0), 1e-20))


def two_sweeps(q, k_pool, v_pool, tables, lengths, out, width, H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr):
    """Slow and right: the keys are read twice, first for the highest score, then for the weights."""
    row, head = tl.program_id(0), tl.program_id(1)
    length, place, d = tl.load(lengths + row), tl.arange(0, PAGE), tl.arange(0, D)
    query = tl.load(q + (row * H + head) * D + d).to(tl.float32)
    top, total, acc = -3e38, 0.0, tl.zeros((D,), tl.float32)
    for start in range(0, length, PAGE):
        real = (place < length - start)[:, None]
        block = tl.load(tables + row * width + start // PAGE).to(tl.int64)
        at = (block * H + head) * PAGE * D + place[:, None] * D + d[None, :]
        scores = tl.sum(tl.load(k_pool + at, mask=real, other=0).to(tl.float32) * query[None, :], 1) * D**-0.5
        top = tl.maximum(top, tl.max(tl.where(start + place < length, scores, -3e38), 0))
    for start in range(0, length, PAGE):
        real = (place < length - start)[:, None]
        block = tl.load(tables + row * width + start // PAGE).to(tl.int64)
        at = (block * H + head) * PAGE * D + place[:, None] * D + d[None, :]
        scores = tl.sum(tl.load(k_pool + at, mask=real, other=0).to(tl.float32) * query[None, :], 1) * D**-0.5
        weights = tl.where(start + place < length, tl.exp(scores - top), 0.0)
        total += tl.sum(weights, 0)
        acc += tl.sum(weights[:, None] * tl.load(v_pool + at, mask=real, other=0).to(tl.float32), 0)
    tl.store(out + (row * H + head) * D + d, acc / tl.where(total > 0, total, 1.0))


_ONE_AXIS = "a block of one dimension has one axis, counted from either end"
_TINY = "a row that holds a token has a sum of at least 1: any number far below it will do"
_STORE = "tl.store(out + (row * H + head) * D + d, acc / tl.maximum({}))"
EQUIVALENT = {
    "higher = tl.maximum(maximum, tl.max(scores, -1))": _ONE_AXIS,
    "total = total * rescale + tl.sum(weights, -1)": _ONE_AXIS,
    _STORE.format("total, 2e-30"): _TINY,
    _STORE.format("total, 5e-31"): _TINY,
}
