"""First kernels in Triton: programs, blocks, masks, sums of rows, blocks of two dimensions. The text is triton.md.

`TRITON_INTERPRET=1 python chapters/03-paged-attention/first_kernel.py` runs them on a CPU; on a GPU leave out the
variable. There are no wheels of Triton for macOS and Windows.
"""

from __future__ import annotations

import os
import sys

import torch
import triton
import triton.language as tl
from torch import Tensor

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


@triton.jit
def double(x, out, BLOCK: tl.constexpr):
    """Program n doubles BLOCK numbers: the n-th block of x."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,)
    tl.store(out + at, 2 * tl.load(x + at))


@triton.jit
def double_some(x, out, N, BLOCK: tl.constexpr):
    """The same for N numbers, whatever N is."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,)
    inside = at < N
    tl.store(out + at, 2 * tl.load(x + at, mask=inside, other=0), mask=inside)


@triton.jit
def sum_rows(x, lanes, out, C, BLOCK: tl.constexpr):
    """Program n sums row n of x (N, C), BLOCK numbers at a time; lanes (N, BLOCK) shows what it held in between."""
    row, lane = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, C, BLOCK):
        c = start + lane  # (BLOCK,)
        total += tl.load(x + row * C + c, mask=c < C, other=0.0)
    tl.store(lanes + row * BLOCK + lane, total)
    tl.store(out + row, tl.sum(total, 0))


@triton.jit
def sum_both(x, rows, columns, best, N, ROWS: tl.constexpr, C: tl.constexpr):
    """One program reads x (N, C) at once, N up to ROWS: a sum of each row and of each column, and the highest row's."""
    r, c = tl.arange(0, ROWS), tl.arange(0, C)
    inside = r < N  # (ROWS,)
    at = r[:, None] * C + c[None, :]  # (ROWS, C)
    block = tl.load(x + at, mask=inside[:, None], other=0.0)  # (ROWS, C)
    by_row = tl.where(inside, tl.sum(block, 1), -float("inf"))  # (ROWS,)
    tl.store(rows + r, by_row)
    tl.store(columns + c, tl.sum(block, 0))
    tl.store(best, tl.max(by_row, 0))


def row_sums(x: Tensor, block: int = 4) -> tuple[Tensor, Tensor]:
    """x (N, C) float32 -> its rows' sums (N,), and the lanes (N, block) before they were joined."""
    x = x.contiguous()
    out, lanes = x.new_empty(len(x)), x.new_empty(len(x), block)
    sum_rows[(len(x),)](x, lanes, out, x.shape[1], BLOCK=block)
    return out, lanes


def _line(what: str, numbers: Tensor) -> None:
    print(f"{what:18}" + "".join(f"{number:5.0f}" for number in numbers.tolist()))


def programs() -> None:
    """Eight numbers, two programs."""
    x = torch.arange(8.0, device=DEVICE)
    out = torch.empty_like(x)
    double[(2,)](x, out, BLOCK=4)
    _line("x", x)
    _line("program", torch.arange(8) // 4)
    _line("out", out)


def masks() -> None:
    """Ten numbers, three programs, and behind them two numbers that belong to somebody else."""
    x = torch.tensor([*range(10), -1, -1], dtype=torch.float32, device=DEVICE)
    _line("before", x)
    for what, kernel, arguments in (("without a mask", double, ()), ("with the mask", double_some, (10,))):
        out = x.clone()
        kernel[(3,)](x, out, *arguments, BLOCK=4)
        _line(what, out)


def sums() -> None:
    """Two rows of six numbers, four at a time."""
    x = torch.tensor([[1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60]], dtype=torch.float32, device=DEVICE)
    out, lanes = row_sums(x)
    for row in range(2):
        _line(f"row {row}", x[row])
        _line("  its four lanes", lanes[row])
        _line("  their sum", out[row : row + 1])


def both() -> None:
    """Three rows of four, in a block of four by four."""
    x = torch.tensor([[-1, -2, -3, -4], [-5, 1, 1, 1], [-9, 2, 3, 1]], dtype=torch.float32, device=DEVICE)
    rows, columns, best = x.new_empty(4), x.new_empty(4), x.new_empty(1)
    sum_both[(1,)](x, rows, columns, best, 3, ROWS=4, C=4)
    for row in range(3):
        _line(f"row {row}", x[row])
    _line("sums of rows", rows)
    _line("sums of columns", columns)
    _line("highest row", best)


SHOWN = {function.__name__: function for function in (programs, masks, sums, both)}


if __name__ == "__main__":
    if DEVICE == "cuda" and not torch.cuda.is_available():
        print("There is no GPU here: set TRITON_INTERPRET=1, which runs kernels on the CPU.", file=sys.stderr)
        sys.exit(2)
    for name in sys.argv[1:] or SHOWN:
        SHOWN[name]()
