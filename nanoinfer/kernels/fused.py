"""Fewer and larger kernels a step: what the model computes with besides attention, fused. Chapter 4.

In a captured step the host costs nothing, but each kernel still takes a microsecond to begin, and for a few rows a
matrix library leaves most of a large GPU idle. Here an update is added to the residual stream, and the stream
normalised, in one kernel; and narrow matrices meet few rows in a kernel that cuts them along both sides, so that every
multiprocessor reads a part. Cutting the inner side: "Split-K", as in CUTLASS's documentation, "Efficient GEMM".
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanoinfer.model.ops import TorchOps

FEW_ROWS = 64  # above, a matrix library keeps a GPU busy by itself
COLUMNS = 32  # of the result, a program
PROGRAMS = 256  # about as many as keep a large GPU's memory busy
MAX_SPLITS = 8


@triton.jit
def keep_and_norm(total, x_out, h_out, weight, bias, row, c, eps, C: tl.constexpr):
    """Store a row of the residual stream (C_POWER,) float32, and LayerNorm of it. weight, bias: (C_POWER,)."""
    real = c < C
    total = total.to(x_out.dtype.element_ty)  # rounded here, as the stream itself is
    tl.store(x_out + row * C + c, total, mask=real)
    total = total.to(tl.float32)
    centred = tl.where(real, total - tl.sum(total, 0) / C, 0.0)
    variance = tl.sum(centred * centred, 0) / C
    h = centred * tl.rsqrt(variance + eps) * weight.to(tl.float32) + bias.to(tl.float32)
    tl.store(h_out + row * C + c, h.to(h_out.dtype.element_ty), mask=real)


@triton.jit
def _add_norm_kernel(
    x, update, weight, bias, x_out, h_out, eps, N, PARTS: tl.constexpr, C: tl.constexpr, C_POWER: tl.constexpr
):
    """Program n adds all parts of row n of `update` to row n of `x`, and normalises the sum."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, C_POWER)
    real = c < C
    norm_weight = tl.load(weight + c, mask=real, other=0.0)
    norm_bias = tl.load(bias + c, mask=real, other=0.0)
    total = tl.load(x + row * C + c, mask=real, other=0.0).to(tl.float32)
    for part in tl.static_range(PARTS):  # in order, so that the sum has the same bits every time
        total += tl.load(update + (part * N + row) * C + c, mask=real, other=0.0).to(tl.float32)
    keep_and_norm(total, x_out, h_out, norm_weight, norm_bias, row, c, eps, C)


@triton.jit
def _linear_kernel(
    x, weight, bias, out, M, N, K, M_POWER: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    SPLITS: tl.constexpr, GELU: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (n, s) multiplies all rows by part s of K, for a strip of columns: part s of the result."""
    strip, split = tl.program_id(0), tl.program_id(1)
    m, n, k = tl.arange(0, M_POWER), strip * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, STEP)
    per_split = tl.cdiv(tl.cdiv(K, STEP), SPLITS) * STEP
    acc = tl.zeros((M_POWER, COLUMNS), dtype=tl.float32)
    for start in tl.range(split * per_split, tl.minimum((split + 1) * per_split, K), STEP, num_stages=STAGES):
        inner = start + k  # (STEP,)
        x_mask = (m < M)[:, None] & (inner < K)[None, :]
        w_mask = (inner < K)[:, None] & (n < N)[None, :]
        x_tile = tl.load(x + m[:, None] * K + inner[None, :], mask=x_mask, other=0.0)  # (M_POWER, STEP)
        w_tile = tl.load(weight + inner[:, None] * N + n[None, :], mask=w_mask, other=0.0)  # (STEP, COLUMNS)
        acc = tl.dot(x_tile, w_tile, acc, input_precision="ieee")  # without it float32 would be rounded to TF32
    if split == 0:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if GELU:  # x/2 (1 + tanh u) is x sigmoid(2u); u as in `gelu_new`
        acc *= tl.sigmoid(1.5957691216057308 * (acc + 0.044715 * acc * acc * acc))
    mask = (m < M)[:, None] & (n < N)[None, :]
    tl.store(out + (split * M + m[:, None]) * N + n[None, :], acc.to(out.dtype.element_ty), mask=mask)


class FusedOps(TorchOps):
    """TorchOps by fewer kernels. Where a matrix library does as well, it stays."""

    def add_norm(self, x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """update: (N, C), or (parts, N, C) float32 as `linear_update` gives it."""
        N, C = x.shape
        parts = len(update) if update.dim() == 3 else 1
        x_out, h_out = torch.empty_like(x), torch.empty_like(x)
        _add_norm_kernel[(N,)](
            x, update, weight, bias, x_out, h_out, eps, N, PARTS=parts, C=C, C_POWER=triton.next_power_of_2(C)
        )
        return x_out, h_out

    def linear_gelu(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return few_rows(x, weight, bias, 1, gelu=True) if len(x) <= FEW_ROWS else super().linear_gelu(x, weight, bias)

    def linear_update(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """(N, C), or (parts, N, C) float32 whose sum it is."""
        if len(x) > FEW_ROWS:
            return super().linear_update(x, weight, bias)
        wanted = min(MAX_SPLITS, PROGRAMS // triton.cdiv(weight.shape[1], COLUMNS))
        return few_rows(x, weight, bias, 1 << max(0, wanted.bit_length() - 1))

    def head(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, weight)  # 16 bits hold what 16-bit matrices give; the sampler widens them


def few_rows(x: Tensor, weight: Tensor, bias: Tensor, splits: int, gelu: bool = False) -> Tensor:
    """x (M, K) @ weight (K, N) + bias (N,), gelu of it if asked -> (M, N); of several splits (splits, M, N) float32."""
    (M, K), N = x.shape, weight.shape[1]
    power = max(16, triton.next_power_of_2(M))
    step = (256 if power <= 32 and splits == 1 else 128) // x.element_size()  # tiles that fit into shared memory
    shape, dtype = ((splits, M, N), torch.float32) if splits > 1 else ((M, N), x.dtype)
    out = torch.empty(shape, dtype=dtype, device=x.device)
    _linear_kernel[(triton.cdiv(N, COLUMNS), splits)](
        x, weight, bias, out, M, N, K, M_POWER=power, COLUMNS=COLUMNS, STEP=step, SPLITS=splits, GELU=gelu,
        STAGES=5, num_warps=4,
    )  # fmt: skip
    return out
