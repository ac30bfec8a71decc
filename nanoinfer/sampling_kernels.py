"""Sampling without sorting: one launch chooses the next token of every row, by the rule of sampling.py. Chapter 4.

A sort of 50,257 logits costs more than the model. Top-k and top-p need no order, only the lowest logit that is kept,
and bisection finds it. Two things make it cheap: what cannot be kept is left out first, so that the search runs over a
short list; and noise is made for the list alone. Search by a pivot: FlashInfer, "Sorting-Free GPU Kernels for LLM
Sampling", 2025. A short list before it: "Qrita", arXiv 2602.01518, section 3.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanoinfer.state import BatchState

TILE = 8192  # logits of a row that a program reads at a time
FEW = 2048  # of its list
GROUPS = 256  # of ids; see `_list`
ROOM = 4096  # candidates that a row's list has room for


@triton.jit
def _mix(x):
    """`sampling.mix`, in arithmetic of 32 bits."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _bits(seed, step, ids):
    """`sampling.random_bits`, as uint32."""
    low, high, at = seed.to(tl.uint32), (seed >> 32).to(tl.uint32), step.to(tl.uint32)
    first = _mix(_mix(_mix(low ^ 0x9E3779B9) ^ high) ^ at)
    second = _mix(_mix(_mix(low ^ 0x85EBCA6B) ^ high) ^ at)
    return _mix(_mix(ids.to(tl.uint32) ^ first) ^ second)


@triton.jit
def _gumbel(seed, step, ids):
    """`sampling.gumbel` of the given ids. Its logarithms may differ from PyTorch's in the last bit."""
    u = tl.minimum((_bits(seed, step, ids) | 1).to(tl.float32) * 2.0**-32, 1 - 2.0**-24)
    return -tl.log(tl.where(u < 2.0**-10, u + 0.5 * u * u, -tl.log(1 - u)))


@triton.jit
def _read(source, n, start, TILE: tl.constexpr):
    """The next TILE of n logits, as float32; past the end -inf, which nothing chooses."""
    at = start + tl.arange(0, TILE)
    return tl.load(source + at, mask=at < n, other=-float("inf")).to(tl.float32)


@triton.jit
def _weight(source, n, lowest, highest, heat, BY_MASS: tl.constexpr, TILE: tl.constexpr):
    """How many of n logits score as high as the logit `lowest`; BY_MASS: their exp(score - highest score), summed."""
    weight = tl.zeros((TILE,), dtype=tl.float32)
    for start in range(0, n, TILE):
        logit = _read(source, n, start, TILE)
        each = tl.exp((logit - highest) / heat) if BY_MASS else 1.0
        weight += tl.where(tl.div_rn(logit, heat) >= tl.div_rn(lowest, heat), each, 0.0)
    return tl.sum(weight, 0)


@triton.jit
def _search(row, source, n, low, highest, target, heat, V, BY_MASS: tl.constexpr, TILE: tl.constexpr):
    """The highest logit for which `_weight` reaches `target`, looked for in a list, and in the row if that is too short.

    Bisection ends where the logits' dtype has no number between low and high: 16 bits take some 7 passes, 32 some 22.
    """
    while (_weight(source, n, low, highest, heat, BY_MASS, TILE) < target) & (low > -float("inf")):
        source, n, low = row, V, 2 * low - highest - heat
    high, middle = float("inf"), highest
    while (low < middle) & (middle < high):  # a NaN ends it
        if _weight(source, n, middle, highest, heat, BY_MASS, TILE) >= target:
            low = middle
        else:
            high = middle
        middle = (0.5 * low + 0.5 * high).to(row.dtype.element_ty).to(tl.float32)
    return source, n, low


@triton.jit
def _list(row, near, ids, heat, V, TILE: tl.constexpr, GROUPS: tl.constexpr, ROOM: tl.constexpr):
    """Write the best ids of a row and their logits into its list; return the number, the lowest and the highest.

    Each group of ids, those that are equal modulo GROUPS, has a highest logit; what reaches the lowest of these is
    listed. That makes GROUPS * ln(GROUPS) ids or so, and GROUPS at least.
    """
    tops = tl.full((TILE,), -float("inf"), tl.float32)
    for start in range(0, V, TILE):
        tops = tl.maximum(tops, _read(row, V, start, TILE))
    tops = tl.max(tl.reshape(tops, (TILE // GROUPS, GROUPS)), 0)
    low, n = tl.min(tops, 0), 0
    for start in range(0, V, TILE):
        logit = _read(row, V, start, TILE)
        enough = tl.div_rn(logit, heat) >= tl.div_rn(low, heat)
        place = n + tl.cumsum(enough.to(tl.int32), 0) - 1
        tl.store(near + place, logit.to(near.dtype.element_ty), mask=enough & (place < ROOM))
        tl.store(ids + place, start + tl.arange(0, TILE), mask=enough & (place < ROOM))
        n += tl.sum(enough.to(tl.int32), 0)
    tl.debug_barrier()  # what one thread has written another reads
    return n, low, tl.max(tops, 0)


@triton.jit
def _sample_kernel(
    logits, stride, temperatures, top_ks, top_ps, seeds, steps, lists, list_ids, tokens,
    V: tl.constexpr, TILE: tl.constexpr, FEW: tl.constexpr, GROUPS: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Program b chooses row b's token."""
    b = tl.program_id(0).to(tl.int64)
    row, near, ids = logits + b * stride, lists + b * ROOM, list_ids + b * ROOM
    temperature = tl.load(temperatures + b) if ROOM else 0.0
    k, p, seed, step = tl.load(top_ks + b), tl.load(top_ps + b), tl.load(seeds + b), tl.load(steps + b)
    heat = tl.where(temperature > 0, temperature, 1.0)
    k = tl.where(k < V, k, 0)
    source, n, lowest = row, V, -float("inf")
    if (temperature > 0) & ((k > 0) | (p < 1)):
        n, lowest, highest = _list(row, near, ids, heat, V, TILE, GROUPS, ROOM)
        if n <= ROOM:
            source = near
        else:
            n = V
        if k > 0:
            source, n, lowest = _search(row, source, n, lowest, highest, k, heat, V, False, FEW)
            mass = _weight(source, n, lowest, highest, heat, True, FEW)
        else:
            mass = _weight(row, V, -float("inf"), highest, heat, True, FEW)
        if p < 1:
            source, n, lowest = _search(row, source, n, lowest, highest, p * mass, heat, V, True, FEW)
    best = tl.full((FEW,), -float("inf"), tl.float32)
    best_id = tl.zeros((FEW,), dtype=tl.int32)
    for start in range(0, n, FEW):
        score = tl.div_rn(_read(source, n, start, FEW), heat)
        token = start + tl.arange(0, FEW)
        token = tl.load(ids + token, mask=(token < n) & (n <= ROOM), other=token)  # FIXME
        kept = score >= tl.div_rn(lowest, heat)
        if temperature > 0:
            score += _gumbel(seed, step, token)
        better = kept & (score > best)
        best, best_id = tl.where(better, score, best), tl.where(better, token, best_id)
    tl.store(tokens + b, tl.min(tl.where(best == tl.max(best, 0), best_id, 2**31 - 1), 0))


def sample(logits: Tensor, rows: BatchState, room: int = ROOM) -> Tensor:
    """Logits (B, V) -> tokens (B,)."""
    (B, V), device = logits.shape, logits.device
    lists = torch.empty(B, room, dtype=logits.dtype, device=device)
    ids = torch.empty(B, room, dtype=torch.int32, device=device)
    tokens = torch.empty(B, dtype=torch.int64, device=device)
    _sample_kernel[(B,)](
        logits, logits.stride(0), rows.temperature, rows.top_k, rows.top_p, rows.seed, rows.step, lists, ids, tokens,
        V=V, TILE=TILE, FEW=FEW if room else TILE, GROUPS=GROUPS, ROOM=room, num_warps=16,
    )  # fmt: skip
    return tokens


def greedy(logits: Tensor, rows: BatchState) -> Tensor:
    """Logits (B, V) -> tokens (B,)."""
    return sample(logits, rows, 0)
