"""The texts that the pages of chapters 3 to 8 set against each other: wrong ones differ from right ones."""

from __future__ import annotations

import pytest

from tests.book.chapter_pages import checkout, told

pytestmark = checkout
WRONG = [
    (3, "neighbours", "by the table", "as if contiguous"),
    (4, "escaped", "right", "attention escaped"),
    (4, "key_too_short", "right", "key without the length"),
    (4, "noise_baked", "right", "noise baked"),
    (4, "warmed", "captured before", "in the middle"),
    (4, "position_baked", "right", "position is a number"),
    (5, "names", "by all before it", "by its own tokens"),
    (5, "not_written", "found once planned", "found once reserved"),
    (5, "preempted", "a large pool", "noise from 0 again"),
    (5, "not_full", "0: its own block", "one block for both"),
    (7, "same", "without drafts or with", "noise of the step"),
    (7, "rejected", "overwritten", "left in the cache"),
    (8, "layer", "two ranks", "bias on every rank"),
    (8, "layer", "two ranks", "residual in the sum"),
    (8, "moved", "no engine dies", "as a longer prompt"),
]
SAME = [
    (5, "preempted", "a large pool", "a small one"),
    (8, "moved", "no engine dies", "continued elsewhere"),
]


@pytest.mark.parametrize("chapter, block, right, wrong", WRONG)
def test_a_text_that_is_shown_as_wrong_differs_from_the_right_one(
    chapter: int, block: str, right: str, wrong: str
) -> None:
    assert told(chapter, block)[wrong][0] != told(chapter, block)[right][0]


def test_a_matrix_that_is_cut_straight_gives_another_text() -> None:
    assert told(8, "straight")["cut straight"][0] != told(8, "layer")["two ranks"][0]


@pytest.mark.parametrize("chapter, block, one, other", SAME)
def test_texts_that_are_shown_as_equal_are_equal(chapter: int, block: str, one: str, other: str) -> None:
    assert told(chapter, block)[one] == told(chapter, block)[other]
