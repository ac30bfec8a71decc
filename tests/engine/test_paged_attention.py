"""Both attention kernels over pages, that of decode rows and the ragged one, against a plain softmax in float64.

Whatever no token was written to holds NaN, and pools stand between guard zones of NaN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from nanoinfer.kernels import paged_attention_torch
from tests.engine.kernel_cases import DEVICE, INTERPRETED, Case, case_of, guarded, here
from tests.engine.test_ragged_attention import MIXED

pytest.importorskip("triton", reason="there are no wheels of Triton here")

from nanoinfer.kernels import paged_attention, ragged_attention

pytestmark = here
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def decode(case: Case, splits: int, lengths: Tensor | None = None) -> Tensor:
    """The decode kernel's result; `done` must be ready for the next launch afterwards."""
    q, k_pool, v_pool, tables, batch = case
    done = torch.zeros(len(q) * q.shape[1], dtype=torch.int32, device=DEVICE)
    lengths = batch.positions + 1 if lengths is None else lengths
    with nan_where_nothing_is_written():
        got = paged_attention.attend_pages(q, k_pool, v_pool, tables[batch.row], lengths, done, splits)
    assert not done.any()
    return got


def ragged(case: Case, work: Any = None) -> Tensor:
    """The ragged kernel's result."""
    with nan_where_nothing_is_written():
        return ragged_attention.attend_ragged(*case, ragged_attention.work_list(case.batch) if work is None else work)


def nan_where_nothing_is_written() -> Any:
    return patch.object(torch, "empty", lambda *shape, **kind: torch.zeros(*shape, **kind).fill_(torch.nan))


def check(case: Case, splits: int = 0, tolerance: float | None = None) -> Tensor:
    """The result of the decode kernel with so many splits, or of the ragged kernel, once it is as the plain softmax."""
    got = decode(case, splits) if splits else ragged(case)
    tolerance = (tolerance or TOLERANCE[got.dtype]) * (1 if splits else 2)  # the ragged kernel rounds weights, too
    real = case.real
    torch.testing.assert_close(got.cpu()[real].double(), case.plain()[real], rtol=tolerance, atol=tolerance)
    return got


def in_tiles_of(tokens: int) -> Any:
    """Work lists and launches have tiles of so many, whatever the step."""
    return patch.object(ragged_attention, "tile_of", lambda *step: tokens)


both = pytest.mark.parametrize("splits", [0, 1, 4], ids=["ragged", "decode", "decode in splits"])


@both
@pytest.mark.parametrize("page", [16, 32, 64, 128, 256])
def test_block_sizes(page: int, splits: int) -> None:
    """Lengths around a page and around a tile of 64."""
    decoding = [(length - 1, 1) for length in (page - 1, page, page + 1, 1, 63, 64, 65, 200)]
    check(case_of(decoding if splits else MIXED, D=16, page=page), splits)


SIZES = [(D, torch.float32) for D in (16, 32, 40, 64, 80, 96, 128)]


@both
@pytest.mark.parametrize("D, dtype", [*SIZES, (64, torch.float16), (64, torch.bfloat16)])
def test_head_sizes(D: int, dtype: torch.dtype, splits: int) -> None:
    """Powers of two and others: padded lanes neither read nor write (P05)."""
    if INTERPRETED and dtype == torch.bfloat16 and not splits:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16")
    check(case_of([(32, 1), (69, 1)] if splits else [(3, 17), (40, 1), (0, 5)], H=3, D=D, dtype=dtype), splits)


@both
def test_scores_near_the_limits(splits: int) -> None:
    """One huge key, last or early, and scores in the hundreds: without a running maximum exp overflows."""
    case = case_of([(129, 1), (63, 1)] if splits else [(80, 17), (0, 20)])
    pages, at = case.slots(0)
    key = -1 if splits else 3
    case.k_pool[pages[key], :, at[key]] = 60.0 * case.q[0].sign()
    case.q.mul_(20)
    check(case, splits, 1e-4)


@pytest.mark.parametrize("splits", [1, 2, 8, 16])
def test_rows_of_length_0_and_empty_splits(splits: int) -> None:
    """P03: such a row gives zeros; its neighbours are as without it."""
    case = case_of([(69, 1), (0, 1), (2, 1)])
    lengths = case.batch.positions + 1
    lengths[1] = 0
    got = decode(case, splits, lengths)
    assert not got[1].any()
    torch.testing.assert_close(got[::2].cpu().double(), case.plain()[::2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("H, D", [(3, 16), (5, 32), (2, 80)])
def test_write(H: int, D: int) -> None:
    """Into permuted slots, from the rows of a wider tensor as qkv is; all else, guard zones too, stays as it was."""
    N, page, pages = 9, 16, 4
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(N, 3, H, D, generator=generator).to(DEVICE)
    slots = torch.randperm(pages * page, generator=generator)[:N].to(DEVICE)
    pools = [guarded(pages, H, page, D) for _ in range(4)]
    paged_attention.write_pages(qkv[:, 1], qkv[:, 2], pools[0], pools[1], slots)
    paged_attention_torch.write_pages(qkv[:, 1], qkv[:, 2], pools[2], pools[3], slots)
    for got, expected in ((pools[0], pools[2]), (pools[1], pools[3])):
        whole = torch.tensor([], dtype=torch.float32, device=DEVICE)
        whole.set_(got.untyped_storage())  # type: ignore[call-overload]
        before, written, after = whole.chunk(3)
        assert torch.equal(written.nan_to_num(99.0), expected.flatten().nan_to_num(99.0))
        assert bool(torch.cat([before, after]).isnan().all())


def test_the_decode_comparison_can_fail() -> None:
    """One key hidden, and the table of another row: both are far outside the tolerance."""
    case = case_of([(69, 1), (69, 1)])
    expected = case.plain()
    hidden = replace(case.batch, positions=case.batch.positions - 1)
    swapped = replace(case.batch, row=1 - case.batch.row)
    for wrong in (hidden, swapped):
        assert float((decode(case._replace(batch=wrong), 2).cpu() - expected).abs().max()) > 1e-3


def test_the_ragged_comparison_can_fail() -> None:
    """One key hidden, another row's pages, a list that leaves a token out, and one of tiles that are not launched."""
    case = case_of([(40, 17), (20, 17)])
    batch, expected = case.batch, case.plain()
    hidden, swapped = replace(batch, positions=batch.positions - 1), replace(batch, row=1 - batch.row)
    short = ragged_attention.work_list(batch).clone()
    short[0, 1] -= 1
    with in_tiles_of(64):
        large = ragged_attention.work_list(batch)
    for wrong in (hidden, swapped):
        assert float((ragged(case._replace(batch=wrong)).cpu() - expected).nan_to_num(9.0).abs().max()) > 1e-3
    for work in (short, large):
        assert bool(ragged(case, work).isnan().any())


STEPS = {  # rows, and padding
    "rows that go on, prompts, a piece": (MIXED, None),
    "a prompt's first token beside rows that go on": ([(40, 1), (0, 1), (63, 1), (0, 20), (17, 9)], (0, 0)),
    "a piece of one token behind a longer one": ([(40, 1), (5, 16), (30, 1)], (2, 0)),
    "room for more": ([(40, 1), (0, 2), (30, 1), (7, 5)], (3, 30)),
    "none goes on": ([(0, 70), (5, 1), (9, 3)], (0, 1)),
    "all go on": ([(40, 1), (64, 1), (130, 1)], None),
    "all go on, and one token of padding": ([(40, 1), (64, 1)], (1, 1)),
    "one row, and many without tokens": ([(5, 2)], (9, 4)),
    "one token, and padding": ([(0, 1)], (1, 40)),
}


@pytest.mark.parametrize("tile", [16, 64])
@pytest.mark.parametrize("name", STEPS)
def test_mixed_steps(name: str, tile: int) -> None:
    """Large tiles are an economy, and change nothing else."""
    rows, padding = STEPS[name]
    with in_tiles_of(tile):
        check(case_of(rows, padding=padding))


@pytest.mark.parametrize("more", [[], [(3, 2)] * 5], ids=["large tiles", "small tiles"])
def test_at_the_bound_of_large_tiles(more: list[tuple[int, int]]) -> None:
    """522 tokens of 6 rows are cut into tiles of 64; and with five short rows more, 532 of 11, into tiles of 16."""
    case = case_of([(0, 300), (37, 64), (10, 65), (200, 1), (0, 63), (0, 29), *more], H=1, D=16)
    assert len(case.q) == 522 + sum(new for _, new in more)
    check(case)
