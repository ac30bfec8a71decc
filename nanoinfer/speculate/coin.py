"""Drafts whose acceptance is known beforehand: to measure what acceptance is worth, and for nothing else. Chapter 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import torch
from torch import Tensor

from nanoinfer.speculate.drafts import agreeing
from nanoinfer.speculate.engine import Drafting as Row
from nanoinfer.speculate.lookup import PromptLookup


class CoinDrafter(PromptLookup):
    """What rows will choose is known from a run without drafts: each draft is that token, or by a coin a wrong one.

    The chance of the right one is alpha. Tokens are those of plain decoding here as well.
    """

    def begin(self, new: Mapping[int, Sequence[int]], alpha: float, seed: int = 0) -> None:
        """new: by a row's seed, all tokens that it will choose."""
        coin = Random(seed)
        self._drafts = {
            name: [token if coin.random() < alpha else int(not token) for token in text] for name, text in new.items()
        }

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        pairs = zip(rows, limits, strict=True)
        return [self._drafts[row.request.seed][row.generated :][:limit] for row, limit in pairs]

    def foreseen(self, row: Row, most: int) -> int:
        newest = slice(len(row.token_ids) - most, len(row.token_ids))
        return agreeing(self._drafts[row.request.seed][newest], row.token_ids[newest])

    def propose(self, rows: Tensor, positions: Tensor, k: int) -> Tensor:
        places = positions[:, None] + torch.arange(1, k + 1, device=rows.device)
        return self.texts[rows[:, None], places]

    def note(self, rows: Tensor, places: Tensor, tokens: Tensor) -> None:
        """Nothing: all drafts are there already."""

    def text(self, row: Row) -> Sequence[int]:
        return [*row.request.prompt_token_ids, *self._drafts[row.request.seed]]
