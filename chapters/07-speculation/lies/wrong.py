"""Decoders that guess, and are not what plain decoding is. Each is the right one with one method written otherwise."""

from __future__ import annotations

import random

from .toy import Asked, Decoder


class StopInside(Decoder):
    """Asks whether the text has ended once a step, of its last letter."""

    def append(self, kept: str) -> None:
        self.text += kept
        self.runs.append(kept)
        self.ended = kept[-1].lower() == self.asked.stop or not self.left()


class NextRow(Decoder):
    """After a wrong guess, takes the letter that was chosen after it, and not the one in its place."""

    def kept(self, drafts: str, chosen: str) -> str:
        right = len(super().kept(drafts, chosen)) - 1
        return chosen[:right] + chosen[min(right + 1, len(drafts))]


class NothingRolledBack(Decoder):
    """Letters of wrong guesses stay in the cache, and what comes next goes after them."""

    def roll_back(self, drafts: int, right: int) -> None:
        pass


class CountsGuesses(Decoder):
    """A penalty that counts what was guessed, too: wrong guesses once, and right ones twice."""

    def count(self, drafts: str, kept: str) -> None:
        self.counts.update(drafts.lower())
        self.counts.update(kept.lower())


class EatenSeed(Decoder):
    """Draws from a generator of its own, once for each place of a step, whether the place is kept or not."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self.random = random.Random(asked.seed)

    def model(self, fed: str, drafts: str) -> str:
        draws = [self.random.random() for _ in range(1 + len(drafts))]
        chosen = super().model(fed, drafts).lower()
        if self.asked.seed is None:
            return chosen
        return "".join(letter.upper() if draw < 0.5 else letter for letter, draw in zip(chosen, draws, strict=True))
