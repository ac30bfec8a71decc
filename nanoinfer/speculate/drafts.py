"""Who guesses the next tokens of rows: the interfaces, and drafts for measuring. Chapter 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from nanoinfer.engine.scheduler import Row
from nanoinfer.speculate.lookup import PromptLookup


class Drafter(Protocol):
    """Guesses what rows will choose next. A wrong guess costs time, and never a token."""

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        """Of each row, the tokens that may follow its text: none, or up to its limit, which may be 0."""


@runtime_checkable
class DeviceDrafter(Drafter, Protocol):
    """One that can do so without the host, of what it keeps on the device: within a captured step."""

    def propose(self, rows: Tensor, positions: Tensor, k: int) -> Tensor:
        """Drafts (B, k) of rows (B,) of the batch state, whose newest tokens stand at positions (B,); NONE for none."""

    def note(self, rows: Tensor, places: Tensor, tokens: Tensor) -> None:
        """A step has chosen these tokens (B, k + 1) for these places of texts; of the dummy row what is of no use."""

    def learn(self, rows: Sequence[Row]) -> None:
        """These rows have the tokens that the host knows. No step in flight drafts; before one does, all are known."""

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Rows of the batch are to be known by other numbers."""

    def forget(self, rows: Sequence[Row]) -> None:
        """These rows have just begun, or begun anew."""


class GivenDrafts:
    """The drafts that somebody puts here ahead of a step, for whatever row goes on: a person's guesses."""

    token_ids: Sequence[int] = ()

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        return [list(self.token_ids[:limit]) for limit in limits]


class CoinDrafter(PromptLookup):
    """Drafts whose acceptance is known beforehand: to measure what acceptance is worth, and for nothing else.

    What rows will choose is known from a run without drafts. Each draft is the right token with probability alpha, by a
    seeded coin, and else a wrong one. So tokens are those of plain decoding here as well.
    """

    def begin(self, new: Mapping[int, Sequence[int]], alpha: float, seed: int = 0) -> None:
        """new: by a row's seed, all tokens that it will choose."""
        coin = Random(seed)
        self._drafts = {
            name: [token if coin.random() < alpha else int(not token) for token in text] for name, text in new.items()
        }
        self._known.clear()

    def propose(self, rows: Tensor, positions: Tensor, k: int) -> Tensor:
        places = positions[:, None] + torch.arange(1, k + 1, device=rows.device)
        return self.texts[rows[:, None], places]

    def note(self, rows: Tensor, places: Tensor, tokens: Tensor) -> None:
        """Nothing: all drafts are there already."""

    def _text(self, row: Row, begin: int) -> Sequence[int]:
        return [*row.request.prompt_token_ids, *self._drafts[row.request.seed]][begin:]
