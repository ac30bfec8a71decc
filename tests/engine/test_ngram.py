"""Drafts by n-grams: the table against a count by hand, and tokens that stay those of plain decoding."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoinfer.speculate.ngram import NGrams, RepeatsOrNGrams

IDS = [5, 40000, 50256, 65535]  # some have the highest of 16 bits


def by_hand(stream: list[int], text: list[int], limit: int) -> list[int]:
    """What follows the longest end of `text` that is followed twice by the same in `stream`, again and again."""
    drafts: list[int] = []
    while len(drafts) < limit:
        for n in (3, 2, 1):
            end = [*text, *drafts][-n:]
            places = range(len(stream) - n)
            counts = Counter(stream[at + n] for at in places if stream[at : at + n] == end) if len(end) == n else {}
            best = max(counts.items(), key=lambda pair: (pair[1], -pair[0]), default=(0, 0))
            if best[1] > 1:
                drafts.append(best[0])
                break
        else:
            break
    return drafts


@pytest.mark.parametrize("seed", range(8))
def test_a_table_as_one_counts_by_hand(seed: int) -> None:
    made = pytest.importorskip("training.drafts", reason="the training scripts are not in the wheel")
    np, random = pytest.importorskip("numpy"), Random(seed)
    stream = [random.choice(IDS) for _ in range(60)]
    ngrams = NGrams(made.tensors(made.fit(np.array(stream, np.uint16), None)))
    texts = [[random.choice(IDS) for _ in range(random.randint(1, 6))] for _ in range(20)]
    limits = [random.randint(0, 5) for _ in texts]
    expected = [by_hand(stream, text, limit) for text, limit in zip(texts, limits, strict=True)]
    assert [ngrams.follow(text, limit) for text, limit in zip(texts, limits, strict=True)] == expected
    assert any(map(len, expected))


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 6))
def test_repeats_as_a_search_finds_them(text: list[int], limit: int) -> None:
    expected: list[int] = []
    for n in (2, 3):
        if ends := [end for end in range(n, len(text)) if text[end - n : end] == text[-n:]]:
            expected = text[ends[-1] : ends[-1] + limit]
    assert RepeatsOrNGrams(NGrams([])).follow("".join(map(chr, text)), limit) == expected
