"""The end of a decode step of few rows: final LayerNorm, head, choice of tokens, and the batch's next state. Chapter 6.

The rule is that of sampling.py. A row without filters needs no logits: each program of the head keeps the best score
of its columns, noise included, and one program a row compares these. Logits are written for rows with filters alone,
or where another sampler is to read them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoinfer.kernels.few_rows import begin, multiply, normalise, read_rows, read_vector, read_weights, wait
from nanoinfer.kernels.sampling import _best, _gumbel, _list, _search, _weight


@triton.jit(do_not_specialize=["B"])
def head_kernel(
    x, gain, shift, wte, logits, scores, ids, temperatures, top_ks, top_ps, seeds, steps, B, stride, eps,
    C: tl.constexpr, V: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    RUN: tl.constexpr, WARPS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program p takes every so many-th strip of columns: the best score (B, programs) and id of each row in these.

    KEEP: whether the logits of all rows are written, and not only of those that filter. WARPS: that share the inner
    side; 1 where they share the columns instead, and strips stream through shared memory, some ahead of their use.
    """
    begin(EARLY)
    program, programs = tl.program_id(0), tl.num_programs(0)
    m, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    weights = ()
    if WARPS > 1:
        weights = read_weights(wte, program * COLUMNS + column, V, C, RUN, WARPS)
    gains, shifts = read_vector(gain, C, RUN, WARPS), read_vector(shift, C, RUN, WARPS)
    temperature = tl.load(temperatures + m, mask=m < B, other=0.0)[:, None]
    k, p = tl.load(top_ks + m, mask=m < B, other=0), tl.load(top_ps + m, mask=m < B, other=1.0)
    seed, step = tl.load(seeds + m, mask=m < B, other=0)[:, None], tl.load(steps + m, mask=m < B, other=0)[:, None]
    kept = ((m < B) & (KEEP | ((k > 0) | (p < 1))))[:, None]
    any_kept, any_noise = tl.max(kept.to(tl.int32)) > 0, tl.max(temperature) > 0
    wait(EARLY)
    h = normalise(read_rows(x, B, ROWS, C, RUN, WARPS), gains, shifts, eps, ROWS, C, RUN, WARPS)
    best = tl.full((ROWS, COLUMNS), -float("inf"), tl.float32)
    best_id = tl.zeros((ROWS, COLUMNS), tl.int32)
    for start in tl.range(program * COLUMNS, V, programs * COLUMNS, num_stages=3):
        n = (start + column)[None, :]
        if WARPS > 1:
            following = read_weights(wte, start + programs * COLUMNS + column, V, C, RUN, WARPS)
            acc = multiply(h, weights, ROWS, COLUMNS, C, RUN, WARPS)
            weights = following
        else:
            acc = tl.zeros((ROWS, COLUMNS), tl.float32)
            for run in tl.static_range((C + RUN - 1) // RUN):
                inside = run * RUN + tl.arange(0, RUN)
                at = wte + (start + column).to(tl.int64)[:, None] * C + inside[None, :]
                tile = tl.load(at, mask=(start + column < V)[:, None] & (inside < C)[None, :], other=0.0)
                acc = tl.dot(tl.reshape(h[run], (ROWS, RUN)), tl.trans(tile), acc, input_precision="ieee")
        logit = acc.to(logits.dtype.element_ty)
        if any_kept:
            tl.store(logits + m[:, None] * stride + n, logit, mask=kept & (n < V))
        score = logit.to(tl.float32)
        if any_noise:
            noisy = tl.div_rn(score, tl.where(temperature > 0, temperature, 1.0)) + _gumbel(seed, step, n)
            score = tl.where(temperature > 0, noisy, score)
        better = (score > best) & (n < V)  # among equals the first stays; a NaN is never better
        best, best_id = tl.where(better, score, best), tl.where(better, n, best_id)
    top = tl.max(best, 1)
    at = m * programs + program
    tl.store(scores + at, top, mask=m < B)
    tl.store(ids + at, tl.min(tl.where(best == top[:, None], best_id, V), 1), mask=m < B)


@triton.jit(do_not_specialize_on_alignment=["stride", "top_ks", "top_ps", "seeds", "steps", "tokens", "positions"])
def choose_kernel(
    row, stride, scores, ids, near, listed_ids, temperatures, top_ks, top_ps, seeds, steps, tokens, positions, lives,
    PROGRAMS: tl.constexpr, POWER: tl.constexpr, V: tl.constexpr, TILE: tl.constexpr, FEW: tl.constexpr,
    GROUPS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program b chooses row b's token and advances the row, as `decode_step` does. A padding row stays as it is."""
    b = tl.program_id(0).to(tl.int64)
    temperature, live, position = tl.load(temperatures + b), tl.load(lives + b), tl.load(positions + b)
    k, p, seed, step = tl.load(top_ks + b), tl.load(top_ps + b), tl.load(seeds + b), tl.load(steps + b)
    wait(EARLY)
    if (temperature > 0) & ((k > 0) | (p < 1)):
        row, near, listed_ids = row + b * stride, near + b * TILE, listed_ids + b * TILE
        k = tl.where(k < V, k, 0)
        listed, bound, highest = _list(row, near, listed_ids, V, TILE, GROUPS)
        logits, n, lowest = row, V, -float("inf")
        if k > 0:
            logits, n, lowest = _search(row, V, near, listed, bound, highest, float("inf"), k, FEW)
        if p < 1:
            mass = _weight(logits, n, lowest, highest, temperature, FEW)
            logits, n, lowest = _search(row, V, near, listed, bound, highest, temperature, p * mass, FEW)
        token = _best(logits, listed_ids, n, V, lowest, temperature, seed, step, FEW, 1)
    else:
        at = tl.arange(0, POWER)
        score = tl.load(scores + b * PROGRAMS + at, mask=at < PROGRAMS, other=-float("inf"))
        best_id = tl.load(ids + b * PROGRAMS + at, mask=at < PROGRAMS, other=V)
        token = tl.min(tl.where(score == tl.max(score, 0), best_id, V), 0)
    tl.store(tokens + b, token.to(tl.int64) * live)
    tl.store(positions + b, position + live)
    tl.store(steps + b, step + live)
