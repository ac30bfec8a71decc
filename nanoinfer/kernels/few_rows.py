"""The half blocks of a decode step of few rows, a kernel each: LayerNorm, matrix and what follows it. Chapter 6.

At few rows a step is bound by the weights' bytes, and by how soon each kernel can ask for them. A program takes a few
columns of a matrix, whose numbers lie side by side, and all rows: each weight is read once. It asks for them before it
waits for the kernel ahead, since they do not depend on it: "programmatic dependent launch", CUDA C++ Programming Guide.
The inner side is cut over the warps, whose sums are added in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(EARLY: tl.constexpr):
    """Let the next kernel begin as soon as there is room for it."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait(EARLY: tl.constexpr):
    """Wait for the kernel ahead, and for all that it waited for: only then may what they write be read, or theirs be
    written over."""
    if EARLY:
        gdc_wait()


@triton.jit
def inner(RUN: tl.constexpr, WARPS: tl.constexpr):
    """(WARPS, 1, RUN // WARPS): which of RUN numbers of the inner side each warp takes."""
    PART: tl.constexpr = RUN // WARPS
    return tl.arange(0, WARPS)[:, None, None] * PART + tl.arange(0, PART)[None, None, :]


@triton.jit
def read_weights(weight, n, N: tl.constexpr, K: tl.constexpr, RUN: tl.constexpr, WARPS: tl.constexpr):
    """Columns n of a matrix that lies as (N, K): tiles (WARPS, len(n), RUN // WARPS), one a run of the inner side."""
    k = inner(RUN, WARPS)
    at = weight + n.to(tl.int64)[None, :, None] * K + k
    tiles = ()
    for start in tl.static_range(0, K, RUN):
        mask = (n < N)[None, :, None] & (start + k < K)
        tiles = tiles + (tl.load(at + start, mask=mask, other=0.0),)  # type: ignore[assignment]  # noqa: RUF005
    return tiles


@triton.jit
def read_rows(x, B, ROWS: tl.constexpr, K: tl.constexpr, RUN: tl.constexpr, WARPS: tl.constexpr):
    """x (B, K), padded with zeros to ROWS: tiles (WARPS, ROWS, RUN // WARPS), one a run."""
    m, k = tl.arange(0, ROWS)[None, :, None], inner(RUN, WARPS)
    tiles = ()
    for start in tl.static_range(0, K, RUN):
        mask = (m < B) & (start + k < K)
        tiles = tiles + (tl.load(x + m * K + start + k, mask=mask, other=0.0),)  # type: ignore[assignment]  # noqa: RUF005
    return tiles


@triton.jit
def read_vector(x, K: tl.constexpr, RUN: tl.constexpr, WARPS: tl.constexpr):
    """x (K,): tiles (WARPS, 1, RUN // WARPS)."""
    k = inner(RUN, WARPS)
    tiles = ()
    for start in tl.static_range(0, K, RUN):
        tiles = tiles + (tl.load(x + start + k, mask=start + k < K, other=0.0),)  # type: ignore[assignment]  # noqa: RUF005
    return tiles


@triton.jit
def normalise(x, gain, shift, eps, ROWS: tl.constexpr, K: tl.constexpr, RUN: tl.constexpr, WARPS: tl.constexpr):
    """LayerNorm of rows that lie in tiles; every program does it for itself, which is cheaper than to be told."""
    RUNS: tl.constexpr = (K + RUN - 1) // RUN
    PART: tl.constexpr = RUN // WARPS
    k = inner(RUN, WARPS)
    total = tl.zeros((WARPS, ROWS, PART), tl.float32)
    for run in tl.static_range(RUNS):
        total += x[run].to(tl.float32)
    mean = (tl.sum(tl.sum(total, 2), 0) / K)[None, :, None]
    squares = tl.zeros((WARPS, ROWS, PART), tl.float32)
    for run in tl.static_range(RUNS):
        centred = tl.where(run * RUN + k < K, x[run].to(tl.float32) - mean, 0.0)
        squares += centred * centred
    scale = tl.rsqrt(tl.sum(tl.sum(squares, 2), 0) / K + eps)[None, :, None]
    tiles = ()
    for run in tl.static_range(RUNS):
        h = (x[run].to(tl.float32) - mean) * scale * gain[run].to(tl.float32) + shift[run].to(tl.float32)
        tiles = tiles + (h.to(x[0].dtype),)  # type: ignore[assignment]  # noqa: RUF005
    return tiles


@triton.jit
def multiply(
    x, weights, ROWS: tl.constexpr, COLUMNS: tl.constexpr, K: tl.constexpr, RUN: tl.constexpr, WARPS: tl.constexpr
):
    """Rows times columns, both in tiles, -> (ROWS, COLUMNS) float32. Each warp has a part of the inner side."""
    RUNS: tl.constexpr = (K + RUN - 1) // RUN
    acc = tl.zeros((WARPS, ROWS, COLUMNS), tl.float32)
    for run in tl.static_range(RUNS):
        acc = tl.dot(x[run], tl.permute(weights[run], (0, 2, 1)), acc, input_precision="ieee")
    return tl.sum(acc, 0)


@triton.jit
def embed_kernel(tokens, positions, wte, wpe, x, C: tl.constexpr, C_POWER: tl.constexpr, EARLY: tl.constexpr):
    """Program b begins the residual stream of row b: its token's embedding and its position's."""
    begin(EARLY)
    b, c = tl.program_id(0), tl.arange(0, C_POWER)
    token, position = tl.load(tokens + b), tl.load(positions + b)
    total = tl.load(wte + token * C + c, mask=c < C, other=0.0).to(tl.float32)
    total += tl.load(wpe + position * C + c, mask=c < C, other=0.0).to(tl.float32)
    tl.store(x + b * C + c, total.to(x.dtype.element_ty), mask=c < C)


@triton.jit(do_not_specialize=["B"])
def qkv_kernel(
    x, gain, shift, weight, bias, q, k_pool, v_pool, tables, row, positions, B, table_stride, eps,
    H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RUN: tl.constexpr,
    WARPS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Queries, keys and values of the newest tokens: q (B, C), and each key and value into its slot of a page."""
    C: tl.constexpr = H * D
    begin(EARLY)
    m, n = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    weights = read_weights(weight, n, 3 * C, C, RUN, WARPS)
    gains, shifts = read_vector(gain, C, RUN, WARPS), read_vector(shift, C, RUN, WARPS)
    added = tl.load(bias + n, mask=n < 3 * C, other=0.0).to(tl.float32)
    position = tl.load(positions + m, mask=m < B, other=0)
    table = tl.load(row + m, mask=m < B, other=0) * table_stride
    page = tl.load(tables + table + position // PAGE, mask=m < B, other=0).to(tl.int64)  # the null block for padding
    wait(EARLY)
    h = normalise(read_rows(x, B, ROWS, C, RUN, WARPS), gains, shifts, eps, ROWS, C, RUN, WARPS)
    y = (multiply(h, weights, ROWS, COLUMNS, C, RUN, WARPS) + added[None, :]).to(q.dtype.element_ty)
    c, real = n % C, (m < B)[:, None]
    tl.store(q + m[:, None] * C + c[None, :], y, mask=real & (n < C)[None, :])
    at = page[:, None] * (H * PAGE * D) + (c // D * PAGE * D + c % D)[None, :] + (position % PAGE * D)[:, None]
    tl.store(k_pool + at, y, mask=real & ((n >= C) & (n < 2 * C))[None, :])
    tl.store(v_pool + at, y, mask=real & ((n >= 2 * C) & (n < 3 * C))[None, :])


@triton.jit(do_not_specialize=["B"])
def up_kernel(
    x, gain, shift, weight, bias, out, B, eps,
    C: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RUN: tl.constexpr,
    WARPS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out (B, N) = GELU of the widening matrix, of LayerNorm of the stream x (B, C)."""
    begin(EARLY)
    m, n = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    weights = read_weights(weight, n, N, C, RUN, WARPS)
    gains, shifts = read_vector(gain, C, RUN, WARPS), read_vector(shift, C, RUN, WARPS)
    added = tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    wait(EARLY)
    h = normalise(read_rows(x, B, ROWS, C, RUN, WARPS), gains, shifts, eps, ROWS, C, RUN, WARPS)
    y = multiply(h, weights, ROWS, COLUMNS, C, RUN, WARPS) + added[None, :]
    y *= tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))  # x/2 (1 + tanh u) is x sigmoid(2u)
    tl.store(out + m[:, None] * N + n[None, :], y.to(out.dtype.element_ty), mask=(m < B)[:, None] & (n < N)[None, :])


@triton.jit(do_not_specialize=["B"])
def update_kernel(
    y, weight, bias, x, B,
    K: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RUN: tl.constexpr,
    WARPS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """x (B, C) += y (B, K) through a matrix: a sublayer's update. Its columns are this program's alone."""
    begin(EARLY)
    m, n = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    weights = read_weights(weight, n, C, K, RUN, WARPS)
    added = tl.load(bias + n, mask=n < C, other=0.0).to(tl.float32)
    wait(EARLY)
    at, mask = x + m[:, None] * C + n[None, :], (m < B)[:, None] & (n < C)[None, :]
    stream = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    update = multiply(read_rows(y, B, ROWS, K, RUN, WARPS), weights, ROWS, COLUMNS, K, RUN, WARPS) + added[None, :]
    tl.store(at, (stream + update).to(x.dtype.element_ty), mask=mask)
