"""Who guesses the next tokens of rows: the interface, and drafts for measuring. Chapter 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

from nanoinfer.engine.scheduler import Row


class Drafter(Protocol):
    """Guesses what rows will choose next. A wrong guess costs time, and never a token."""

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        """Of each row, the tokens that may follow its text: none, or up to its limit, which may be 0."""


class GivenDrafts:
    """The drafts that somebody puts here ahead of a step, for whatever row goes on: a person's guesses."""

    token_ids: Sequence[int] = ()

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        return [list(self.token_ids[:limit]) for limit in limits]


class CoinDrafter:
    """Drafts whose acceptance is known beforehand: to measure what acceptance is worth, and for nothing else.

    texts: by a row's seed, all tokens that it will choose, from a run without drafts. Each draft is the right token
    with probability alpha, by a seeded coin, and else a wrong one. So tokens are those of plain decoding here as well.
    """

    def __init__(self, texts: Mapping[int, Sequence[int]], alpha: float, seed: int = 0) -> None:
        self.texts, self.alpha, self._random = texts, alpha, Random(seed)

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        drafts = []
        for row, limit in zip(rows, limits, strict=True):
            begin = len(row.token_ids)
            right = self.texts[row.request.seed][begin : begin + limit]
            drafts.append([token if self._random.random() < self.alpha else int(not token) for token in right])
        return drafts
