"""Sampling by rejection, an alternative to the book's kernel: one launch for all rows, without a sort or a search.

Draw from the softmax by inverse transform. If fewer than top_k ids and less than top_p of the probability lie above the
drawn id, it is the token; else draw again from those above it. Most rows are done after a few draws, but a launch takes
as long as its slowest row, and the draw depends on the order in which sums are rounded. FlashInfer,
"Sorting-Free GPU Kernels for LLM Sampling", 2025.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanoinfer.engine.state import BatchState
from nanoinfer.kernels.sampling import random_bits

TILE = 4096  # logits that a program reads at a time
DRAWS = 64  # at most; a draw that is dropped halves what is left, or nearly so


@triton.jit
def _above(row, lowest, top, temperature, V: tl.constexpr, TILE: tl.constexpr):
    """Of the logits above `lowest`, how many there are, and exp((logit - top) / temperature), summed."""
    count, mass = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
    for start in range(0, V, TILE):
        at = start + tl.arange(0, TILE)
        logit = tl.load(row + at, mask=at < V, other=-float("inf")).to(tl.float32)
        count += (logit > lowest).to(tl.float32)
        mass += tl.where(logit > lowest, tl.exp((logit - top) / temperature), 0.0)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit
def _rejection_kernel(
    logits, stride, temperatures, top_ks, top_ps, seeds, steps, tokens,
    V: tl.constexpr, TILE: tl.constexpr, DRAWS: tl.constexpr,
):  # fmt: skip
    """Program b draws row b's token."""
    b = tl.program_id(0)
    row = logits + b.to(tl.int64) * stride
    temperature, seed, step = tl.load(temperatures + b), tl.load(seeds + b), tl.load(steps + b)
    k, p = tl.load(top_ks + b), tl.load(top_ps + b)
    k = tl.where(k > 0, k, V)
    tops = tl.full((TILE,), -float("inf"), tl.float32)
    for start in range(0, V, TILE):
        at = start + tl.arange(0, TILE)
        tops = tl.maximum(tops, tl.load(row + at, mask=at < V, other=-float("inf")).to(tl.float32))
    top = tl.max(tops, 0)
    pivot = -float("inf")
    _, total = _above(row, pivot, top, temperature, V, TILE)
    left, token, draw = total, 0, 0
    while draw < DRAWS:
        # The id at which the sum over ids above the pivot passes u: a draw from what is left, by inverse transform.
        u = random_bits(seed, step, draw + tl.zeros((1,), tl.int32)).to(tl.float32) * 2.0**-32
        u = tl.sum(u, 0) * left
        passed = 0.0
        for start in range(0, V, TILE):
            at = start + tl.arange(0, TILE)
            logit = tl.load(row + at, mask=at < V, other=-float("inf")).to(tl.float32)
            mass = tl.where(logit > pivot, tl.exp((logit - top) / temperature), 0.0)
            here = tl.sum(mass, 0)
            if (passed <= u) & (u < passed + here):
                reached = (passed + tl.cumsum(mass, 0) > u) & (mass > 0.0)
                last = tl.max(tl.where(mass > 0.0, at, 0), 0)  # rounding may leave u at the tile's very end
                token = tl.minimum(tl.min(tl.where(reached, at, V), 0), last)
            passed += here
        drawn = tl.load(row + token).to(tl.float32)
        count, mass_above = _above(row, drawn, top, temperature, V, TILE)
        draw += 1
        if (count < k) & ((mass_above < p * total) | (p >= 1.0)):
            draw = DRAWS
        else:
            pivot, left = drawn, mass_above
    tl.store(tokens + b, token)


def rejection(logits: Tensor, rows: BatchState) -> Tensor:
    """Draws from logits (B, V), again and again above what the filters drop, in one launch; tokens (B,) int64."""
    B, V = logits.shape
    tokens = torch.empty(B, dtype=torch.int64, device=logits.device)
    _rejection_kernel[(B,)](
        logits, logits.stride(0), rows.temperature, rows.top_k, rows.top_p, rows.seed, rows.step, tokens,
        V=V, TILE=TILE, DRAWS=DRAWS, num_warps=16,
    )  # fmt: skip
    return tokens
