"""Sampling without sorting: one launch chooses the next token of every row, by the rule of sampling.py. Chapter 4.

A sort of 50,257 logits costs more than the model. Top-k and top-p need no order, only the lowest logit that is kept,
and bisection finds it. Two things make it cheap: three passes over the row leave a short list, so that the search's
dozens of passes run over that; and noise is made for the list alone. Search by a pivot: FlashInfer, "Sorting-Free GPU
Kernels for LLM Sampling", 2025. A short list before it: "Qrita", arXiv 2602.01518; vllm-project/vllm, pull 33538.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanoinfer.engine.state import BatchState

TILE = 8192  # logits of a row that a program reads at a time, and that its list has room for
FEW = 2048  # logits of a list that it reads at a time
GROUPS = 256  # of ids, each with one in the list at least; lists serve top_k up to this, and mostly far beyond
WARPS = 16


@triton.jit
def _mix(x):
    """`sampling.mix`, in 32 bits."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def random_bits(seed, step, ids):
    """`sampling.random_bits`, as uint32."""
    low, high, at = seed.to(tl.uint32), (seed >> 32).to(tl.uint32), step.to(tl.uint32)
    first = _mix(_mix(_mix(low ^ 0x9E3779B9) ^ high) ^ at)
    second = _mix(_mix(_mix(low ^ 0x85EBCA6B) ^ high) ^ at)
    return _mix(_mix(ids.to(tl.uint32) ^ first) ^ second)


@triton.jit
def _gumbel(seed, step, ids):
    """`sampling.gumbel` of the given ids. Its logarithms may differ from PyTorch's in the last bit."""
    u = tl.minimum((random_bits(seed, step, ids) | 1).to(tl.float32) * 2.0**-32, 1 - 2.0**-24)
    return -tl.log(tl.where(u < 2.0**-10, u + 0.5 * u * u, -tl.log(1 - u)))


@triton.jit
def _read(logits, n, start, TILE: tl.constexpr):
    """The next TILE of n logits, as float32; past the end -inf, which is never chosen."""
    at = start + tl.arange(0, TILE)
    return tl.load(logits + at, mask=at < n, other=-float("inf")).to(tl.float32)


@triton.jit
def _weight(logits, n, lowest, highest, temperature, TILE: tl.constexpr):
    """exp((logit - highest) / temperature), summed over those of n logits that reach `lowest`.

    That is their probability, but for a factor; at infinite temperature, their number.
    """
    weight = tl.zeros((TILE,), dtype=tl.float32)
    for start in range(0, n, TILE):
        logit = _read(logits, n, start, TILE)
        weight += tl.where(logit >= lowest, tl.exp((logit - highest) / temperature), 0.0)
    return tl.sum(weight, 0)


@triton.jit
def _search(row, V, logits, n, low, highest, temperature, target, TILE: tl.constexpr):
    """The highest logit such that those that reach it weigh `target`; and the logits that it was found among.

    These are a list of n, if those in it that reach `low` weigh enough, or else the whole row. Bisection ends where
    there is no number between low and high: in bfloat16 after some 8 passes, in float32 after some 24.
    """
    grid: tl.constexpr = tl.bfloat16 if row.dtype.element_ty == tl.bfloat16 else tl.float32
    while (low > -float("inf")) & (_weight(logits, n, low, highest, temperature, TILE) < target):
        logits, n, low = row, V, low - 8 * (highest - low) - tl.abs(low) - 1  # sinks, however large low is
    high, middle = float("inf"), highest
    while (low < middle) & (middle < high):  # a NaN ends it too
        if _weight(logits, n, middle, highest, temperature, TILE) >= target:
            low = middle
        else:
            high = middle
        middle = (0.5 * low + 0.5 * high).to(grid).to(tl.float32)
    return logits, n, low


@triton.jit
def _list(row, near, ids, V: tl.constexpr, TILE: tl.constexpr, GROUPS: tl.constexpr):
    """List the highest logits of a row and their ids: how many, the bound that all of them reach, and the highest.

    Ids that are equal modulo GROUPS are a group. The bound is the lowest of the groups' highest logits, and what
    reaches it is listed: GROUPS ids at least, some GROUPS * ln(GROUPS) on average. More than there is room for count
    as none.
    """
    tops = tl.full((TILE,), -float("inf"), tl.float32)
    for start in tl.range(0, V, TILE, loop_unroll_factor=4):
        tops = tl.maximum(tops, _read(row, V, start, TILE))
    groups = tl.max(tl.reshape(tops, (TILE // GROUPS, GROUPS)), 0)
    highest = tl.max(groups, 0)
    bound = tl.minimum(tl.min(tl.where(groups > -float("inf"), groups, float("inf")), 0), highest)

    count = tl.zeros((TILE,), dtype=tl.int32)  # of the ids that are equal modulo TILE; they stand together in the list
    for start in range(0, V, TILE):
        count += (_read(row, V, start, TILE) >= bound).to(tl.int32)
    n, place = tl.sum(count, 0), tl.cumsum(count, 0) - count
    for start in range(0, V, TILE):
        logit = _read(row, V, start, TILE)
        fits = (logit >= bound) & (place < TILE)
        tl.store(near + place, logit.to(near.dtype.element_ty), mask=fits)
        tl.store(ids + place, start + tl.arange(0, TILE), mask=fits)
        place += (logit >= bound).to(tl.int32)
    tl.debug_barrier()  # what one thread has written, others read
    return tl.where(n <= TILE, n, 0), bound, highest


@triton.jit
def _best(logits, ids, n, V, lowest, temperature, seed, step, TILE: tl.constexpr, UNROLL: tl.constexpr):
    """The id of the best of n logits that reach `lowest`, with noise above temperature 0; among equals the lowest.

    ids: of each of the logits, where they are a list; a list of all V is the row itself.
    """
    best = tl.full((TILE,), -float("inf"), tl.float32)
    best_id = tl.zeros((TILE,), dtype=tl.int32)
    for start in tl.range(0, n, TILE, loop_unroll_factor=UNROLL):
        at = start + tl.arange(0, TILE)
        token = tl.load(ids + at, mask=at < tl.where(n < V, n, 0), other=at)
        logit = _read(logits, n, start, TILE)
        score = logit
        if temperature > 0:
            score = tl.div_rn(logit, temperature) + _gumbel(seed, step, token)
        better = (logit >= lowest) & ((score > best) | (score == best) & (token < best_id))
        best, best_id = tl.where(better, score, best), tl.where(better, token, best_id)
    return tl.min(tl.where(best == tl.max(best, 0), best_id, V), 0)


# Of rows known to be aligned a thread would read neighbours, and every tile would be rearranged before it is listed.
@triton.jit(do_not_specialize_on_alignment=["stride", "top_ks", "top_ps", "seeds", "steps"])
def _sample_kernel(
    row, stride, temperatures, top_ks, top_ps, seeds, steps, near, ids, tokens,
    V: tl.constexpr, TILE: tl.constexpr, FEW: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Program b chooses row b's token."""
    b = tl.program_id(0).to(tl.int64)
    row, near, ids = row + b * stride, near + b * TILE, ids + b * TILE
    temperature = tl.load(temperatures + b)
    if temperature > 0:
        k, p, seed, step = tl.load(top_ks + b), tl.load(top_ps + b), tl.load(seeds + b), tl.load(steps + b)
        k = tl.where(k < V, k, 0)
        logits, n, lowest = row, V, -float("inf")
        if (k > 0) | (p < 1):
            listed, bound, highest = _list(row, near, ids, V, TILE, GROUPS)
            if k > 0:
                logits, n, lowest = _search(row, V, near, listed, bound, highest, float("inf"), k, FEW)
            if p < 1:
                mass = _weight(logits, n, lowest, highest, temperature, FEW)
                logits, n, lowest = _search(row, V, near, listed, bound, highest, temperature, p * mass, FEW)
        tl.store(tokens + b, _best(logits, ids, n, V, lowest, temperature, seed, step, FEW, 1))
    else:
        tl.store(tokens + b, _best(row, ids, V, V, -float("inf"), 0.0, 0, 0, TILE, 4))


def sample(logits: Tensor, rows: BatchState) -> Tensor:
    """The next token (B,) int64 of each row of logits (B, V), by its own temperature, top_k, top_p, seed and step.

    logits: float32, bfloat16 or float16; rows may lie any distance apart.
    The rule is `sampling.sample_filtered`'s, and so are the tokens, but where two scores all but tie, or a sum of
    probabilities all but equals top_p; and a NaN is never chosen. A greedy row costs one pass over it, a row without
    filters one and the noise of all its ids. Nothing depends on the host but shapes, so that it can be captured.
    """
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    (B, V), device = logits.shape, logits.device
    near = torch.empty(B, TILE, dtype=logits.dtype, device=device)
    ids = torch.empty(B, TILE, dtype=torch.int32, device=device)
    tokens = torch.empty(B, dtype=torch.int64, device=device)
    _sample_kernel[(B,)](
        logits, logits.stride(0), rows.temperature, rows.top_k, rows.top_p, rows.seed, rows.step, near, ids, tokens,
        V=V, TILE=TILE, FEW=FEW, GROUPS=GROUPS, num_warps=WARPS,
    )  # fmt: skip
    return tokens
