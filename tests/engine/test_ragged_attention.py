"""Attention for any number of new tokens a row: the reference, and the kernel's list of work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.kernels import paged_attention_torch as reference
from nanoinfer.model.batch import Batch, Chunk, Layout, pack, unpack
from tests.engine.kernel_cases import INTERPRETED, case_of, compiled

# Tokens before the step, and in it: every count around a tile of 16, decode rows, and long rows among short ones.
MIXED = [(0, 1), (0, 2), (5, 15), (16, 16), (31, 17), (0, 40), (70, 1), (100, 40), (1, 1)]


@pytest.mark.parametrize("page, D, padding", [(16, 32, (0, 1)), (64, 40, (2, 0)), (256, 128, (3, 30)), (16, 32, None)])
def test_the_reference(page: int, D: int, padding: tuple[int, int] | None) -> None:
    """Whatever the null block holds, which here is NaN, no real token sees it."""
    case = case_of(MIXED, D=D, page=page, dtype=torch.float64, padding=padding, device="cpu")
    got = reference.attend_ragged(*case, None)
    torch.testing.assert_close(got[case.real], case.plain()[case.real], rtol=1e-12, atol=1e-12)


def test_the_reference_can_fail() -> None:
    """One key hidden, positions off by one, the rows of others: far outside the tolerance, each."""
    case = case_of(MIXED, dtype=torch.float64, device="cpu")
    expected, batch = case.plain(), case.batch
    hidden = replace(batch, positions=(batch.positions - 1).clamp(min=0))
    swapped = replace(batch, row=(batch.row + 1) % len(MIXED))
    for wrong in (hidden, swapped):
        got = reference.attend_ragged(*case._replace(batch=wrong), None)
        assert float((got - expected).nan_to_num(9.0).abs().max()) > 0.01


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
    work = ragged_kernels().work_list(Batch(none, none, none, 1, max_new=max(counts), starts=starts))
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


TILES = [
    (1, 1, 16), (511, 1, 16), (512, 1, 64), (512, 8, 64), (512, 9, 16), (575, 9, 16), (576, 9, 64), (1024, 17, 16),
    (8191, 128, 16), (8192, 128, 64),
]  # fmt: skip


@pytest.mark.parametrize("tokens, rows, tile", TILES)
def test_large_tiles_are_for_many_tokens_a_row(
    tokens: int, rows: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 512 tokens on, where they would fill them; and what is launched is what the list was made for."""
    assert ragged_kernels().tile_of(tokens, rows) == tile
    grid, constants = launch_of(monkeypatch, tokens, rows, 16, torch.float32)
    assert grid == (12, -(-tokens // tile) + rows, 1)
    assert constants["QUERIES"] == tile


def launch_of(monkeypatch: pytest.MonkeyPatch, N: int, rows: int, D: int, dtype: torch.dtype) -> tuple[Any, Any]:
    """The grid and the constants that the kernel is launched with, for N tokens of 12 heads."""
    launched: list[Any] = []
    kernels, (k_pool, v_pool) = ragged_kernels(), torch.zeros(2, 2, 12, 16, D, dtype=dtype)
    monkeypatch.setattr(kernels, "_attend", lambda grid, *call, **constants: launched.extend([grid, constants]))
    batch = unpack(pack([], [Chunk(0, 0, [1] * N)], layout := Layout(rows, N, 1, N, N), 1), layout)
    q, table = torch.zeros(N, 12, D, dtype=dtype), torch.zeros(2, 40, dtype=torch.int32)
    kernels.attend_ragged(q, k_pool, v_pool, table, batch, kernels.work_list(batch))
    grid, constants = launched
    return grid, constants


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
    _, constants = launch_of(monkeypatch, N, 1, D, dtype)
    compiled(ragged_kernels()._ragged_kernel, {2: "fp16", 4: "fp32"}[dtype.itemsize], constants, capability)
