"""The first half of an MLP as one kernel: LayerNorm, a matrix, its bias and GELU, of one row. Chapter 6. Needs Triton.

`TRITON_INTERPRET=1 python chapters/06-kernels/small_kernel.py` runs it on a CPU; on a GPU leave out the variable.
There are no wheels of Triton for macOS and Windows.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from nanoinfer.model.weights import load_model

COLUMNS = 16  # outputs of a program


@triton.jit
def up_kernel(
    x, gain, shift, weight, bias, out, C: tl.constexpr, POWER: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Program p computes outputs p * COLUMNS and up; it normalises the row for itself."""
    n, c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, POWER)
    real = c < C  # POWER is the next power of two: the rest is padding
    weights = tl.load(weight + n[:, None] * C + c[None, :], mask=real[None, :], other=0.0)  # (COLUMNS, POWER)
    row = tl.load(x + c, mask=real, other=0.0)  # (POWER,)
    mean = tl.sum(row) / C
    centred = tl.where(real, row - mean, 0.0)
    h = centred * tl.rsqrt(tl.sum(centred * centred) / C + 1e-5)
    h = h * tl.load(gain + c, mask=real, other=0.0) + tl.load(shift + c, mask=real, other=0.0)
    y = tl.sum(weights * h[None, :], 1) + tl.load(bias + n)  # (COLUMNS,)
    tl.store(out + n, y * tl.sigmoid(1.5957691216 * (y + 0.044715 * y * y * y)))  # GELU


def up(x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A row x (C,) through LayerNorm, weight (N, C), bias and GELU -> (N,). N is a multiple of COLUMNS."""
    N, C = weight.shape
    out = torch.empty(N, device=x.device)
    POWER = triton.next_power_of_2(C)
    up_kernel[(N // COLUMNS,)](x, gain, shift, weight, bias, out, C=C, POWER=POWER, COLUMNS=COLUMNS)
    return out


def main() -> None:
    """Layer 0's MLP of the small model, for the embedding of " fox": one kernel, and PyTorch's three operations."""
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("There is no GPU here: set TRITON_INTERPRET=1, which runs kernels on the CPU.")
    model = load_model("small", torch.device(device), torch.float32)
    layer, x = model.layers[0], model.wte.weight[21831] + model.wpe.weight[1]
    (gain, shift), (turned, bias) = layer.ln_2, layer.c_fc
    weight = turned.t().contiguous()  # (N, C): the numbers that make one output lie side by side
    one = up(x, gain, shift, weight, bias)
    three = F.gelu(F.linear(F.layer_norm(x, x.shape, gain, shift), weight, bias), approximate="tanh")
    for name, y in (("three operations", three), ("one kernel", one)):
        print(f"{name:18}" + " ".join(f"{value:7.4f}" for value in y[:6].tolist()) + "  ...")
    print(f"{len(one)} outputs, {len(one) // COLUMNS} programs; equal to 1e-4: {torch.allclose(one, three, atol=1e-4)}")


if __name__ == "__main__":
    main()
