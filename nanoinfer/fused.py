"""Fewer and larger kernels a step: what the model computes with besides attention, fused. Chapter 4.

In a captured step the host costs nothing, but each kernel still takes a microsecond to begin, and for a few rows a
matrix library leaves most of a large GPU idle. Here the residual stream is added to and normalised in one kernel, and
matrices meet few rows in a kernel that cuts them along both sides, so that every multiprocessor reads a part.
Cutting the inner dimension and joining in the last program to arrive: "Stream-K", Osama et al. 2023, section 4.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanoinfer.model import TorchOps

FEW_ROWS = 64  # above, a matrix library keeps a GPU busy by itself
COLUMNS = 32  # of the result, a program
PROGRAMS = 256  # about as many as keep a large GPU's memory busy
MAX_SPLITS = 8


@triton.jit
def _add_norm_kernel(
    x, update, weight, bias, x_out, h_out, eps, update_stride, C: tl.constexpr, C_POWER: tl.constexpr
):  # fmt: skip
    """Program n adds row n of `update` to row n of `x`, and normalises the sum."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, C_POWER)
    real = c < C
    total = tl.load(x + row * C + c, mask=real, other=0.0).to(tl.float32)
    total += tl.load(update + row * update_stride + c, mask=real, other=0.0).to(tl.float32)
    total = total.to(x_out.dtype.element_ty)  # rounded here, as the stream itself is
    tl.store(x_out + row * C + c, total, mask=real)
    total = total.to(tl.float32)
    mean = tl.sum(total, 0) / C
    centred = tl.where(real, total - mean, 0.0)
    variance = tl.sum(centred * centred, 0) / C
    h = centred * tl.rsqrt(variance + eps) * tl.load(weight + c, mask=real, other=0.0).to(tl.float32)
    h += tl.load(bias + c, mask=real, other=0.0).to(tl.float32)
    tl.store(h_out + row * C + c, h.to(h_out.dtype.element_ty), mask=real)


@triton.jit
def _linear_kernel(
    x, weight, bias, out, parts, arrived, M, N, K, M_POWER: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    SPLITS: tl.constexpr, GELU: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (n, s) multiplies all rows by part s of K, for a strip of columns; the last to arrive joins parts."""
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

    if SPLITS > 1:
        inside = m[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        part = parts + strip * SPLITS * M_POWER * COLUMNS + inside
        tl.store(part + split * M_POWER * COLUMNS, acc)
        tl.debug_barrier()  # all threads have stored before one of them says so
        last = tl.atomic_add(arrived + strip, 1) == SPLITS - 1
        if last:
            acc = tl.zeros((M_POWER, COLUMNS), dtype=tl.float32)
            for s in range(SPLITS):  # in order, so that the sum has the same bits every time
                acc += tl.load(part + s * M_POWER * COLUMNS, cache_modifier=".cg")
            tl.store(arrived + strip, 0)  # for the next launch
    else:
        last = True
    if last:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        if GELU:  # x/2 (1 + tanh u) is x sigmoid(2u); u as in `gelu_new`
            acc *= tl.sigmoid(1.5957691216057308 * (acc + 0.044715 * acc * acc * acc))
        tl.store(
            out + m[:, None] * N + n[None, :], acc.to(out.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :]
        )


class FusedOps(TorchOps):
    """TorchOps by fewer kernels, for a model on `device`. Matrices times more than FEW_ROWS rows are PyTorch's own."""

    def __init__(self, device: torch.device) -> None:
        self._arrived = torch.zeros(4096, dtype=torch.int32, device=device)  # a counter a strip; 0 between launches

    def add_norm(self, x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        N, C = x.shape
        x_out, h_out = torch.empty_like(x), torch.empty_like(x)
        _add_norm_kernel[(N,)](
            x, update, weight, bias, x_out, h_out, eps, update.stride(0), C=C, C_POWER=triton.next_power_of_2(C)
        )
        return x_out, h_out

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self._few_rows(x, weight, bias) if len(x) <= FEW_ROWS else super().linear(x, weight, bias)

    def linear_gelu(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return (
            self._few_rows(x, weight, bias, gelu=True) if len(x) <= FEW_ROWS else super().linear_gelu(x, weight, bias)
        )

    def head(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, weight)  # 16 bits hold what 16-bit matrices give; the sampler widens them

    def _few_rows(self, x: Tensor, weight: Tensor, bias: Tensor, gelu: bool = False) -> Tensor:
        """x (M, K) @ weight (K, N) + bias (N,), M <= FEW_ROWS; gelu: of the result."""
        (M, K), N = x.shape, weight.shape[1]
        power, strips, step = max(16, triton.next_power_of_2(M)), triton.cdiv(N, COLUMNS), 128 // x.element_size()
        splits = 1 << (max(1, min(MAX_SPLITS, PROGRAMS // strips, K // step)).bit_length() - 1)
        out = torch.empty(M, N, dtype=x.dtype, device=x.device)
        parts = torch.empty(strips * splits * power * COLUMNS, dtype=torch.float32, device=x.device)
        _linear_kernel[(strips, splits)](
            x, weight, bias, out, parts, self._arrived, M, N, K, M_POWER=power, COLUMNS=COLUMNS, STEP=step,
            SPLITS=splits, GELU=gelu, STAGES=5, num_warps=4,
        )  # fmt: skip
        return out
