"""The ragged kernel compiled: all that the interpreter is too slow for, and steps of other tokens in one graph."""

from __future__ import annotations

import pytest
import torch

from nanoinfer.kernels import paged_attention_torch as reference
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
@pytest.mark.parametrize("D", [40, 64, 128])
def test_many_tokens(D: int, dtype: torch.dtype) -> None:
    """Tiles of 64, long contexts, and padding."""
    rows = [(0, 300), (513, 64), (10, 65), (200, 1), (0, 63), (700, 30)]
    check(case_of(rows, D=D, dtype=dtype, padding=(2, 40)))


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


@pytest.mark.parametrize("new", range(1, 70, 3))
def test_every_count(new: int) -> None:
    for start in (0, 15, 16, 63, 64, 100):
        check(case_of([(start, new), (3, 1)], D=64))


@pytest.mark.parametrize("rows", [MIXED, [(0, 300), (40, 300)]], ids=["small tiles", "large tiles"])
def test_twice_gives_the_same_bits(rows: list[tuple[int, int]]) -> None:
    case = case_of(rows, D=64, dtype=torch.bfloat16)
    assert torch.equal(ragged(case), ragged(case))


@pytest.mark.parametrize("tile", [16, 64])
def test_one_graph_for_other_tokens(tile: int) -> None:
    """Captured on padding alone; replayed for rows that are written into its tensors, work list and all."""
    from nanoinfer.kernels import ragged_attention

    steps = [[(0, 40), (5, 1), (30, 17)], [(60, 1), (0, 2), (3, 70)], [(90, 1), (40, 1), (0, 70)], [(9, 1)] * 3]
    padded = [case_of(rows, D=64, padding=(0, 100 - sum(new for _, new in rows))) for rows in (steps[0], *steps)]
    (q, k_pool, v_pool, _, batch), *cases = padded
    assert batch.starts is not None
    batch.row.fill_(3)  # the dummy row, which the others follow; nobody has a token
    batch.positions.zero_()
    batch.starts.zero_()[-1] = len(q)
    pools = [torch.full((20, *pool.shape[1:]), torch.nan, device="cuda") for pool in (k_pool, v_pool)]
    tables = torch.zeros(4, 8, dtype=torch.int32, device="cuda")

    def run() -> torch.Tensor:
        return ragged_attention.attend_ragged(q, *pools, tables, batch, ragged_attention.work_list(batch))

    graph = torch.cuda.CUDAGraph()
    with in_tiles_of(tile):
        for _ in range(3):  # compiled, and launched as it will be
            run()
        with torch.cuda.graph(graph):
            out = run()
    for case in cases:
        assert case.batch.starts is not None
        q.copy_(case.q)
        batch.row.copy_(case.batch.row)
        batch.positions.copy_(case.batch.positions)
        batch.starts.copy_(case.batch.starts)
        for pool, values in zip(pools, case[1:3], strict=True):
            pool[: len(values)] = values
        tables[:, : case.tables.shape[1]] = case.tables
        graph.replay()
        expected, chosen = reference.attend_ragged(*case, None), case.real
        torch.testing.assert_close(out.cpu()[chosen], expected.cpu()[chosen], rtol=1e-5, atol=1e-5)
