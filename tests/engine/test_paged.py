"""Blocks and tables: who owns what, who waits, what is refused; and the shapes and splits of paged steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.blocks import NULL, BlockAllocator, BlockManager
from nanoinfer.cache.paged import PagedCache, choose_splits
from nanoinfer.model.gpt2 import GPT2
from tests.conftest import SMALL, prompts_of


def cache(blocks: int, max_batch: int = 4, max_len: int = 100) -> PagedCache:
    return PagedCache(SMALL, max_batch, max_len, blocks, 16, torch.device("cpu"), torch.float32)


@given(st.integers(1, 20), st.lists(st.integers(0, 30), max_size=200))
@settings(max_examples=200, deadline=None)
def test_invariants(blocks: int, history: list[int]) -> None:
    """No block is owned twice, free and owned make all, the null block is never handed out; misuse is an error."""
    allocator = BlockAllocator(blocks)
    owned: list[int] = []
    for action in history:
        if action % 3 and allocator.free_blocks:
            block = allocator.allocate()
            assert block not in owned
            assert NULL < block < blocks
            owned.append(block)
        elif owned:
            allocator.free(owned.pop(action % len(owned)))
        assert allocator.free_blocks + len(owned) == blocks - 1
    for wrong in {-1, *range(blocks + 1)}.difference(owned):  # the null block among them
        with pytest.raises(ValueError, match=f"block {wrong} is not owned"):
            allocator.free(wrong)
    while allocator.free_blocks:
        allocator.allocate()
    with pytest.raises(RuntimeError, match="no free block"):
        allocator.allocate()


def test_a_reservation_holds_blocks_that_are_not_taken_yet() -> None:
    """P06: exactly enough is enough, and one block less is not."""
    blocks = BlockManager(1 + 5, 16, 4)
    assert blocks.reserve(0, 48)  # three blocks
    blocks.grow(0, 1)
    assert not blocks.reserve(1, 33)
    assert blocks.reserved == 2  # of a refusal nothing stays
    assert blocks.reserve(1, 32)
    assert [blocks.fits(tokens) for tokens in (80, 81)] == [True, False]


ROWS = st.integers(0, 3)


@given(st.lists(st.tuples(st.integers(0, 5), ROWS, ROWS, st.integers(0, 70)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_histories_of_tables(history: list[tuple[int, int, int, int]]) -> None:
    """Each row owns the blocks of its length, the refused get none, and tables know all of it after each update."""
    paged = cache(1 + 12)
    blocks, lengths = paged.blocks, [0] * 4
    for action, row, other, number in history:
        reserved = blocks.reservation[row]
        if action == 0 and not reserved:
            fits = blocks.blocks_of(number) + sum(blocks.reservation) <= 12
            assert blocks.reserve(row, number) == fits
        elif action in {1, 2}:
            length = min(number, 16 * reserved)
            grows = action == 1
            (blocks.grow if grows else blocks.truncate)(row, length)
            lengths[row] = (max if grows else min)(lengths[row], length)
        elif action == 3:
            blocks.release(row)
            paged.free(slice(row, row + 1))
            lengths[row] = 0
        elif action == 4 and reserved and not blocks.reservation[other]:
            blocks.move([row], [other])
            paged.move(torch.tensor([row]), torch.tensor([other]))
            lengths[row], lengths[other] = 0, lengths[row]
        elif action == 5:
            assert len({told[:2] for told in blocks.begun}) == len(blocks.begun)  # else the device may write either
            paged.update()
            assert not blocks.begun
            for owned, table in zip(blocks.owned, paged.tables.tolist(), strict=False):
                assert table[: len(owned)] == owned
        assert [len(owned) for owned in blocks.owned] == [blocks.blocks_of(length) for length in lengths]
        assert blocks.allocator.free_blocks + sum(map(len, blocks.owned)) == 12
        assert blocks.reserved == sum(blocks.reservation) - sum(map(len, blocks.owned))


def test_what_can_never_fit_is_refused_before_anything_runs(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither waits for ever nor begins the others."""
    llm = LLM(small_model, engine="paged", kv_blocks=4)
    fits = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
    words = "prompt 1 may grow to 65 tokens, which 4 blocks of 16 cannot hold"
    with monkeypatch.context() as patch:
        patch.setattr(GPT2, "forward", None)
        with pytest.raises(ValueError, match=words):
            llm.generate(prompts_of([50, 51, 2]), fits)
    assert len(llm.generate(prompts_of([50, 50, 2]), fits)) == 3


@pytest.mark.parametrize("most", [1, 11, 300])
def test_a_captured_prefill_pads_no_more_than_its_ladder(most: int) -> None:
    """Whatever the number of rows is, tokens are padded to the next total; as many rows as tokens are one, too."""
    paged = cache(2, max_batch=most, max_len=1024)
    shapes = paged.shapes(most, 2048)
    totals = sorted({total for _, total in shapes})
    assert totals[:5] == [16, 32, 64, 128, 256]
    for tokens in range(1, 2049):
        for rows in {1, 2, 7, 9, 65, 100, most, tokens}:
            if rows <= min(most, tokens):
                _, total = next(each for each in shapes if each[0] >= rows and each[1] >= tokens)
                assert total == min(each for each in totals if each >= tokens)


def test_splits() -> None:
    """Few where rows are many or short, and the same while a context grows within a power of two."""
    assert choose_splits(1, 12, 1024) == 16
    assert choose_splits(64, 12, 1024) == 1
    assert choose_splits(512, 12, 1024) == 1
    assert choose_splits(1, 12, 1) == 1
    assert {choose_splits(8, 12, n) for n in range(513, 1025)} == {8}
