"""Sampling without sorting: one launch chooses the next token of every row, by the rule of sampling.py. Chapter 4.

A sort of 50,257 logits costs more than the model. Top-k and top-p need no order, only the lowest logit that is kept,
and bisection finds it. Two things make it cheap: what is surely not kept is left out first, so that the search runs
over a short list, and noise is made for the list alone. Search by a pivot: FlashInfer, "Sorting-Free GPU Kernels for
LLM Sampling", 2025. A short list before it: "Qrita", arXiv 2602.01518.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanoinfer.state import BatchState

TILE = 8192  # logits of a row that a program reads at a time, and that its list has room for
FEW = 2048  # of the list
GROUPS = 64  # of logits, each with one in the list at least
WARPS = 16


@triton.jit
def _mix(x):
    """`sampling.mix` in 32 bits."""
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
def _read(logits, n, start, TILE: tl.constexpr):
    """The next TILE of n logits, as float32; past the end -inf, which is never chosen."""
    at = start + tl.arange(0, TILE)
    return tl.load(logits + at, mask=at < n, other=-float("inf")).to(tl.float32)


@triton.jit
def _weight(logits, n, lowest, highest, heat, TILE: tl.constexpr):
    """exp((logit - highest) / heat), summed over those of n logits that reach `lowest`; infinite heat counts them."""
    weight = tl.zeros((TILE,), dtype=tl.float32)
    for start in range(0, n, TILE):
        logit = _read(logits, n, start, TILE)
        weight += tl.where(logit >= lowest, tl.exp((logit - highest) / heat), 0.0)
    return tl.sum(weight, 0)


@triton.jit
def _search(row, V, logits, n, low, highest, heat, target, TILE: tl.constexpr):
    """The highest logit such that all that reach it weigh `target`; before it, the logits where that holds.

    These are the n of a list, if all in it that reach `low` weigh enough, or else the V of the row. Bisection ends where
    the logits' dtype has no number between low and high: 16 bits take some 7 passes, 32 some 22.
    """
    while (low > -float("inf")) & (_weight(logits, n, low, highest, heat, TILE) < target):
        logits, n, low = row, V, 8 * low - 7 * highest - 1
    high, middle = float("inf"), highest
    while (low < middle) & (middle < high):  # a NaN ends it too
        if _weight(logits, n, middle, highest, heat, TILE) >= target:
            low = middle
        else:
            high = middle
        middle = (0.5 * low + 0.5 * high).to(row.dtype.element_ty).to(tl.float32)
    return logits, n, low


@triton.jit
def _token(lanes, start, n, V: tl.constexpr, LANES: tl.constexpr, TILE: tl.constexpr):
    """The ids that stand at the next TILE of n places of a list: lane by lane, each with its ids in order."""
    at, EACH = start + tl.arange(0, TILE), tl.cdiv(V, LANES)
    return tl.load(lanes + at // EACH, mask=at < n, other=0) + at % EACH * LANES


@triton.jit
def _list(row, near, lanes, V: tl.constexpr, TILE: tl.constexpr, FEW: tl.constexpr, GROUPS: tl.constexpr):
    """Copy the highest logits of a row into its list: how many, above which logit it has all, and the highest.

    Ids that are equal modulo TILE are a lane, lanes that are equal modulo GROUPS a group. The bound is the lowest of the
    groups' highest logits, and lanes in which an id reaches it are listed. So GROUPS ids do at least, and about
    GROUPS * ln(GROUPS) on average. More than there is room for count as none.
    """
    tops = tl.full((TILE,), -float("inf"), tl.float32)  # the highest logit of each lane
    for start in range(0, V, TILE):
        tops = tl.maximum(tops, _read(row, V, start, TILE))
    groups = tl.max(tl.reshape(tops, (TILE // GROUPS, GROUPS)), 0)
    highest = tl.max(groups, 0)
    bound = tl.minimum(tl.min(tl.where(groups > -float("inf"), groups, float("inf")), 0), highest)

    chosen = (tops >= bound).to(tl.int32)
    tl.store(lanes + tl.cumsum(chosen, 0) - 1, tl.arange(0, TILE), mask=chosen > 0)
    n = tl.sum(chosen, 0) * tl.cdiv(V, TILE)
    n = tl.where(n <= TILE, n, 0)
    tl.debug_barrier()  # what one thread has written, others read
    for start in range(0, n, FEW):
        at, token = start + tl.arange(0, FEW), _token(lanes, start, n, V, TILE, FEW)
        tl.store(near + at, tl.load(row + token, mask=token < V, other=-float("inf")), mask=at < n)
    tl.debug_barrier()
    return n, bound, highest


@triton.jit
def _sample_kernel(
    row, stride, temperatures, top_ks, top_ps, seeds, steps, near, lanes, tokens,
    V: tl.constexpr, TILE: tl.constexpr, FEW: tl.constexpr, GROUPS: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """Program b chooses row b's token."""
    b = tl.program_id(0).to(tl.int64)
    row, near, lanes = row + b * stride, near + b * TILE, lanes + b * TILE
    temperature = 0.0 if GREEDY else tl.load(temperatures + b)
    k, p, seed, step = tl.load(top_ks + b), tl.load(top_ps + b), tl.load(seeds + b), tl.load(steps + b)
    k = tl.where(k < V, k, 0)
    logits, n, lowest = row, V, -float("inf")
    if (temperature > 0) & ((k > 0) | (p < 1)):
        n, lowest, highest = _list(row, near, lanes, V, TILE, FEW, GROUPS)
        logits = near
        if k > 0:
            logits, n, lowest = _search(row, V, near, n, lowest, highest, float("inf"), k, FEW)
            mass = _weight(logits, n, lowest, highest, temperature, FEW)
        else:
            mass = _weight(row, V, -float("inf"), highest, temperature, FEW)
        if p < 1:
            logits, n, lowest = _search(row, V, logits, n, lowest, highest, temperature, p * mass, FEW)

    best = tl.full((FEW,), -float("inf"), tl.float32)
    best_id = tl.zeros((FEW,), dtype=tl.int32)
    for start in range(0, n, FEW):
        token = start + tl.arange(0, FEW)
        if n < V:
            token = _token(lanes, start, n, V, TILE, FEW)
        logit = _read(logits, n, start, FEW)
        score = logit
        if temperature > 0:
            score = tl.div_rn(logit, temperature) + _gumbel(seed, step, token)
        better = (logit >= lowest) & ((score > best) | (score == best) & (token < best_id))
        best, best_id = tl.where(better, score, best), tl.where(better, token, best_id)
    tl.store(tokens + b, tl.min(tl.where(best == tl.max(best, 0), best_id, V), 0))


def sample(logits: Tensor, rows: BatchState) -> Tensor:
    return _launch(logits, rows, False)


def greedy(logits: Tensor, rows: BatchState) -> Tensor:
    return _launch(logits, rows, True)


def _launch(logits: Tensor, rows: BatchState, greedy: bool) -> Tensor:
    (B, V), device = logits.shape, logits.device
    near = torch.empty(B, TILE, dtype=logits.dtype, device=device)
    lanes = torch.empty(B, TILE, dtype=torch.int32, device=device)
    tokens = torch.empty(B, dtype=torch.int64, device=device)
    _sample_kernel[(B,)](
        logits, logits.stride(0), rows.temperature, rows.top_k, rows.top_p, rows.seed, rows.step, near, lanes, tokens,
        V=V, TILE=TILE, FEW=TILE if greedy else FEW, GROUPS=GROUPS, GREEDY=greedy, num_warps=WARPS,
    )  # fmt: skip
    return tokens
