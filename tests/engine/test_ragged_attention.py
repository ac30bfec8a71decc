"""Attention for any number of new tokens a row: the reference, and the kernel's list of work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.kernels import ragged_attention_torch as reference
from nanoinfer.model.batch import Batch
from tests.engine.kernel_cases import INTERPRETED, case_of, compiled

# Tokens before the step, and in it: every count around a tile of 16, decode rows, and long rows among short ones.
MIXED = [(0, 1), (0, 2), (5, 15), (16, 16), (31, 17), (0, 40), (70, 1), (100, 40), (1, 1)]


@pytest.mark.parametrize("page, D, padding", [(16, 32, (0, 1)), (64, 40, (2, 0)), (256, 128, (3, 30)), (16, 32, None)])
def test_the_reference(page: int, D: int, padding: tuple[int, int] | None) -> None:
    """Whatever the null block holds, which here is NaN, no real token sees it."""
    case = case_of(MIXED, D=D, page=page, dtype=torch.float64, padding=padding, device="cpu")
    got = reference.attend_ragged(*case, None)
    torch.testing.assert_close(got[case.real], case.plain()[case.real], rtol=1e-12, atol=1e-12)


COUNTS = st.integers(0, 2) | st.integers(0, 150)  # tokens of a row


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 20), st.lists(COUNTS, max_size=12), st.integers(0, 3))
def test_work_list(singles: int, counts: list[int], empty: int) -> None:
    """Every token in exactly one item, in order; none over two rows; items without tokens last.

    And as many items as are known without a value.
    """
    counts = [*[1] * singles, *counts, *[0] * empty]
    counts = counts if sum(counts) else [1, *counts]
    N, B, starts = sum(counts), len(counts), torch.tensor([0, *counts]).cumsum(0)
    none = torch.zeros(N, dtype=torch.int64)
    work = ragged_kernels().work_list(Batch(none, none, none, starts, max(counts), 0))
    tile = 64 if N >= 512 and N >= 64 * B else 16
    assert (work.dtype, work.shape) == (torch.int32, (-(-N // tile) + B, 2))
    row_of = [row for row, count in enumerate(counts) for _ in range(count)]
    taken, items = [], work.tolist()
    for first, count in items:
        assert 0 <= count <= tile
        taken += range(first, first + count)
        assert len(set(row_of[first : first + count])) <= 1
    assert taken == list(range(N))
    used = sum(-(-count // tile) for count in counts)
    assert all(count for _, count in items[:used])
    assert not any(count for _, count in items[used:])


def ragged_kernels() -> Any:
    return pytest.importorskip("nanoinfer.kernels.ragged_attention", reason="there are no wheels of Triton here")


COMPILED = [
    (torch.float16, 64, 8, 75), (torch.float16, 64, 600, 75), (torch.float16, 64, 600, 80),
    (torch.float16, 80, 600, 90), (torch.float32, 64, 600, 75), (torch.float32, 40, 8, 89),
    (torch.float32, 128, 600, 75),
]  # fmt: skip


@pytest.mark.skipif(INTERPRETED, reason="interpreted kernels cannot be compiled")
@pytest.mark.long
@pytest.mark.parametrize("dtype, D, N, capability", COMPILED)
def test_compiles_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, D: int, N: int, capability: int
) -> None:
    """With the constants that it is launched with, and within the shared memory of the GPUs of that kind."""
    constants: dict[str, Any] = {}
    kernels, case = ragged_kernels(), case_of([(0, N)], H=12, D=D, dtype=dtype, device="cpu")
    monkeypatch.setattr(kernels, "_attend", lambda grid, *call, **launched: constants.update(launched))
    kernels.attend_ragged(*case, kernels.work_list(case.batch))
    compiled(kernels._ragged_kernel, {2: "fp16", 4: "fp32"}[dtype.itemsize], constants, capability)
