"""A model of a few lines, for exercises about what is done with a model.

Its logits at a column depend on all tokens up to there and on their positions, so that a missing token, a wrong order
or a wrong position shows. A hundred calls take a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

WIDTH = 8


class Toy:
    """Token ids (T) -> logits (T, vocab_size), float32, for 1 to `context` tokens. Weights by seed."""

    def __init__(self, seed: int, vocab_size: int, context: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab_size, self.context = vocab_size, context
        self.tokens = torch.randn(vocab_size, WIDTH, generator=generator)
        self.places = torch.randn(context, WIDTH, generator=generator)
        self.head = torch.randn(vocab_size, WIDTH, generator=generator)

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """The logits (T, vocab_size). ValueError for token ids that a model could not take either."""
        ids = list(token_ids)
        if not 1 <= len(ids) <= self.context:
            raise ValueError(f"the model takes 1 to {self.context} tokens, not {len(ids)}")
        if not all(isinstance(token, int) and 0 <= token < self.vocab_size for token in ids):
            raise ValueError(f"token ids are whole numbers from 0 to {self.vocab_size - 1}")
        x = (self.tokens[ids] + 0.5) * self.places[: len(ids)]  # (T, WIDTH)
        return torch.sin(x.cumsum(0) * 1.7) @ self.head.T


class LastOften(Toy):
    """A toy in which, at about every third token, the last id is the highest, by far.

    It takes any whole number for an id, as one that is looked up from the end, or in a table with room behind it.
    """

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """As a toy's."""
        ids = [token % self.vocab_size for token in token_ids]
        logits = super().logits(ids)
        often = torch.tensor(ids).cumsum(0) % 3 == 0
        logits[often, -1] = logits.amax(-1)[often] + 1
        return logits


class NearTies(Toy):
    """A toy in which, at about every third token, ids 0 and 1 are the highest, by far, and all but tie.

    scale: of all logits. apart: their distance, in units of 1e-4 * max(1, largest |logit|). shift: added to them all.
    third: the logit of id 2 there, unless it is 0. others: by what the logits after all other tokens are larger.
    """

    def __init__(
        self, seed: int, vocab_size: int, context: int, scale: float, apart: float, shift: float = 0.0,
        third: float = 0.0, others: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(seed, vocab_size, context)
        self.scale, self.apart, self.shift, self.third, self.others = scale, apart, shift, third, others

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """As a toy's; ValueError for the same."""
        logits = super().logits(token_ids) * self.scale
        at = [place for place, total in enumerate(accumulate(token_ids)) if total % 3 == 0]
        rows = logits[at]  # (ties, vocab_size)
        if self.others != 1:
            logits *= self.others
        if self.shift:
            logits += self.shift
        if at:
            rows[:, 0] = rows.abs().amax(-1) + 0.05 + 0.2 * (self.shift != 0)
            rows += self.shift
            if self.third:
                rows[:, 2] = self.third
            rows[:, 1] = rows[:, 0] - self.apart * (1e-4 * rows.abs().amax(-1).clamp(min=1))
            logits[at] = rows
        return logits
