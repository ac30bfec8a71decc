"""Blocks and tables: who owns what, who waits, what is refused; and the shapes and splits of paged steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.captured import CapturedPaged
from nanoinfer.cache.paged import PagedCache, choose_splits
from nanoinfer.cache.ragged import CapturedRagged
from nanoinfer.model.gpt2 import GPT2
from tests.conftest import SMALL, prompts_of

WHERE = torch.device("cpu"), torch.float32


def test_a_reservation_holds_blocks_that_are_not_taken_yet() -> None:
    """P06: exactly enough is enough, and one block less is not."""
    paged = PagedCache(SMALL, 4, 100, 5, 16, *WHERE)
    with pytest.raises(ValueError, match="81 tokens never fits into 5 blocks of 16"):
        paged.admit(0, SimpleNamespace(end=81))  # type: ignore[arg-type]
    blocks = paged.blocks
    assert blocks.reserve(0, 48)  # three blocks
    blocks.grow(0, 1)
    assert not blocks.reserve(1, 33)
    assert blocks.reserved == [2, 0, 0, 0]  # of a refusal nothing stays
    assert blocks.reserve(1, 32)


SLOTS = st.integers(0, 3)


@given(st.lists(st.tuples(st.integers(0, 4), SLOTS, SLOTS, st.integers(1, 70)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_histories_of_tables(history: list[tuple[int, int, int, int]]) -> None:
    """Each slot owns the blocks of its length, the refused get none, nobody the null block; tables know all of it."""
    paged = CapturedPaged(SMALL, 4, 100, 12, 16, *WHERE)
    blocks, lengths, longest = paged.blocks, [0] * 4, [0] * 4
    for action, slot, other, number in history:
        if action == 0 and not longest[slot]:
            fits = blocks.blocks_of(number) + sum(map(blocks.blocks_of, longest)) <= 12
            assert blocks.reserve(slot, number) == fits
            longest[slot] = number * fits
        elif action in {1, 2} and (count := min(number, longest[slot]) - lengths[slot]) > 0:
            s: Any = SimpleNamespace(row=slot)
            if news := paged.news([(s, lengths[slot], count)]):
                paged.update(news)
            lengths[slot] += count
        elif action == 3:
            paged.release(slot)
            paged.vacate(slice(slot, slot + 1))
            lengths[slot] = longest[slot] = 0
        elif action == 4 and longest[slot] and not longest[other]:
            paged.rename([slot], [other])
            paged.move(torch.tensor([slot]), torch.tensor([other]))
            lengths[slot], lengths[other] = 0, lengths[slot]
            longest[slot], longest[other] = 0, longest[slot]
        assert [len(owned) for owned in blocks.owned] == [blocks.blocks_of(length) for length in lengths]
        assert sorted(sum(blocks.owned, blocks.free)) == list(range(1, 13))
        assert blocks.available == 12 - sum(map(blocks.blocks_of, longest))
        for owned, table in zip(blocks.owned, paged.tables.tolist(), strict=False):
            assert table[: len(owned)] == owned
    for slot, most in enumerate(longest):
        with pytest.raises(RuntimeError, match="past what it has reserved"):
            blocks.grow(slot, 16 * blocks.blocks_of(most) + 1)


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
    paged = CapturedRagged(SMALL, most, 1024, 2, 16, *WHERE, preemption=False, identity=None)
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
