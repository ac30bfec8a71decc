"""A decoder with guesses, small enough to be broken in one place: plain Python, and no tensor.

Its tokens are letters. Its model recites: a prompt begins again and again. What it says next it reads from the cache,
as attention does, so a slot that holds a wrong letter, or stands in a wrong place, is a wrong letter some time later.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

WRONG = 4  # each so many letters of a text, the one who guesses is wrong


class Asked(NamedTuple):
    """letters: how many are wanted. k: guesses of a step. stop: a letter that ends the text; "" for none.

    tired: a letter that has been written so often comes as "*", a penalty; 0 for none. seed: sampled letters come as
    capitals, or not, by chance; None for none.
    """

    prompt: str
    letters: int
    k: int = 4
    stop: str = ""
    tired: int = 0
    seed: int | None = None


class Decoder:
    """One text. It is what plain decoding gives (k = 0), whatever is guessed."""

    def __init__(self, asked: Asked) -> None:
        self.asked, self.text, self.ended = asked, asked.prompt, False
        self.cache: list[str] = []  # a letter for each place; what lies after `length` does not count
        self.length = 0
        self.counts: Counter[str] = Counter()  # letters that have been written, small
        self.runs: list[str] = []  # what each step gave

    def run(self) -> str:
        """All new letters."""
        while not self.ended:
            self.step()
        return self.text[len(self.asked.prompt) :]

    def step(self) -> None:
        fed = self.text[-1:] if self.cache else self.text
        drafts = self.drafts(min(self.asked.k, self.left() - 1))
        chosen = self.model(fed, drafts)
        kept = self.kept(drafts, chosen)
        self.roll_back(len(drafts), len(kept) - 1)
        self.count(drafts, kept)
        self.append(kept)

    def written(self) -> str:
        return self.text[len(self.asked.prompt) :]

    def left(self) -> int:
        return self.asked.letters - len(self.written())

    # Who guesses: right, but for some places

    def drafts(self, most: int) -> str:
        """It recites as the model does, and draws with the same noise; it knows of no penalty."""
        prompt, at = self.asked.prompt, len(self.text)
        right = [self.drawn(prompt[place % len(prompt)], place) for place in range(at, at + most)]
        return "".join("?" if place % WRONG == WRONG - 1 else letter for place, letter in enumerate(right, at))

    # The model

    def model(self, fed: str, drafts: str) -> str:
        """Write all that is fed, and choose a letter after the newest one and after each draft."""
        self.cache[self.length :] = [*fed, *drafts]
        self.length += len(fed) + len(drafts)
        places = range(self.length - len(drafts), self.length + 1)
        return "".join(self.chosen(place, drafts[:at]) for at, place in enumerate(places))

    def chosen(self, place: int, ahead: str) -> str:
        """The letter of a place in the cache. ahead: the drafts of this step that stand before it."""
        letter = self.cache[place - len(self.asked.prompt)].lower()
        counts = self.counts + Counter(ahead.lower())
        tired = self.asked.tired and counts[letter] >= self.asked.tired
        return "*" if tired else self.drawn(letter, len(self.text) + len(ahead))

    def drawn(self, letter: str, place: int) -> str:
        """The letter, by the noise of its place in the text."""
        if self.asked.seed is None:
            return letter
        return letter.upper() if random.Random(1000 * self.asked.seed + place).random() < 0.5 else letter

    # What is made of it

    def kept(self, drafts: str, chosen: str) -> str:
        right = next((at for at, draft in enumerate(drafts) if draft != chosen[at]), len(drafts))
        return chosen[: right + 1]

    def roll_back(self, drafts: int, right: int) -> None:
        """Letters of wrong guesses no longer count, and are written over."""
        self.length -= drafts - right

    def count(self, drafts: str, kept: str) -> None:
        self.counts.update(kept.lower())

    def append(self, kept: str) -> None:
        """Letter by letter, up to where the text ends."""
        for at, letter in enumerate(kept):
            self.text += letter
            if letter.lower() == self.asked.stop or not self.left():
                self.ended = True
                kept = kept[: at + 1]
                break
        self.runs.append(kept)
