"""A kernel for the tests of recorded launches; Triton reads its source from the file."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_kernel(x, out, number, SIZE: tl.constexpr):  # noqa: ANN001, ANN201
    """out = x + number, SIZE elements a program."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at) + number)
