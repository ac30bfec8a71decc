"""Prompt lookup in one launch: each program searches one row's text. Chapter 7."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # tokens of a text that are held against its end at a time


@triton.jit
def _look_up_kernel(
    texts, rows, positions, drafts, T, k, LONGEST: tl.constexpr, NONE: tl.constexpr, TILE: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    row, end = tl.load(rows + tl.program_id(0)), tl.load(positions + tl.program_id(0))
    text = texts + row * T
    best = end * 0  # an n-gram's length times T, and where it ends
    for start in range(0, end, TILE):
        at = start + tl.arange(0, TILE)
        same = at < end
        length = tl.zeros((TILE,), dtype=tl.int64)
        for n in tl.static_range(LONGEST):
            last = tl.load(text + end - n, mask=end >= n, other=NONE)
            same = same & (at >= n) & (tl.load(text + at - n, mask=same & (at >= n), other=NONE) == last)
            length += same
        best = tl.maximum(best, tl.max(length * T + at, 0))
    number = tl.arange(0, K)
    since = best % T
    places = since + 1 + number % tl.maximum(end - since, 1)
    # Not `& (best >= T)`: Triton 3.9's interpreter makes no mask of a vector and a single truth.
    token = tl.load(text + places, mask=number < tl.where(best >= T, k, 0), other=NONE)
    tl.store(drafts + tl.program_id(0) * k + number, token, mask=number < k)


def look_up(texts: Tensor, rows: Tensor, positions: Tensor, k: int, longest: int, none: int) -> Tensor:
    """As `speculate.lookup.look_up`, where all tensors are contiguous, but for `rows` and `positions`.

    none: what stands where there is no draft.
    """
    drafts = torch.empty(len(rows), k, dtype=torch.int64, device=texts.device)
    sizes = {"LONGEST": longest, "NONE": none, "TILE": TILE, "K": triton.next_power_of_2(k)}
    _look_up_kernel[(len(rows),)](texts, rows.contiguous(), positions.contiguous(), drafts, texts.shape[1], k, **sizes)
    return drafts
