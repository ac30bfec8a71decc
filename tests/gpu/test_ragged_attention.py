"""The ragged kernel compiled: all that the interpreter is too slow for, and steps of other tokens in one graph."""

from __future__ import annotations

import pytest
import torch

from tests.engine.kernel_cases import case_of
from tests.engine.test_paged_attention import STEPS, check, in_tiles_of, ragged
from tests.engine.test_ragged_attention import MIXED

pytestmark = pytest.mark.gpu
pytest.importorskip("triton", reason="there are no wheels of Triton here")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("D", [32, 40, 64, 80, 96, 128])
@pytest.mark.parametrize("page", [16, 32, 64, 128, 256])
def test_block_and_head_sizes(page: int, D: int, dtype: torch.dtype) -> None:
    check(case_of(MIXED, D=D, page=page, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tile", [16, 64])
@pytest.mark.parametrize("D", [40, 64, 128])
def test_mixed_steps(D: int, tile: int, dtype: torch.dtype) -> None:
    """By small tiles and by large ones, whichever the step would have."""
    with in_tiles_of(tile):
        for rows, padding in STEPS.values():
            check(case_of(rows, D=D, dtype=dtype, padding=padding))
        rows = [*((37 * row % 400, 1) for row in range(70)), (0, 300), (513, 64), (10, 265)]
        check(case_of(rows, D=D, dtype=dtype, padding=(60, 40)))


@pytest.mark.parametrize("rows", [MIXED, [(0, 300), (40, 300)]], ids=["small tiles", "large tiles"])
def test_twice_gives_the_same_bits(rows: list[tuple[int, int]]) -> None:
    case = case_of(rows, D=64, dtype=torch.bfloat16)
    assert torch.equal(ragged(case), ragged(case))
