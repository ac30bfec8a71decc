"""Machines that write letters and are given guesses: right ones, and ones with one mistake each. For exercise 7.8.

Their model looks at the letters that it reads, each with its position, and has an opinion of every letter. Right ones
write what plain decoding writes, whatever is guessed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

LETTERS = "abcdefghij"
CONTEXT = 24  # letters of a prompt and what is written after it
Request = tuple[str, int, int, str, str]  # prompt, seed, limit, stop, guess


def opinion(cells: Sequence[tuple[int, str]], letter: str) -> int:
    """What the model thinks of a letter after these letters, each with its position."""
    return zlib.crc32(f"{[*cells]} {letter}".encode()) % 1000


def noise(seed: int, place: int, letter: str) -> int:
    """A row's noise for its n-th new letter; seed 0 is greedy."""
    return zlib.crc32(f"{seed} {place} {letter}".encode()) % 2000 if seed else 0


def choose(cells: Sequence[tuple[int, str]], seed: int, place: int) -> str:
    """The letter with the highest sum, the first one among equals."""
    return max(LETTERS, key=lambda letter: opinion(cells, letter) + noise(seed, place, letter))


def plain(prompt: str, seed: int, count: int) -> str:
    """So many letters after the prompt, by plain decoding: the text is read anew for each of them."""
    text = prompt
    for place in range(count):
        text += choose(list(enumerate(text)), seed, place)
    return text[len(prompt) :]


@dataclass
class Row:
    """A request that runs. cells: what its cache holds; the newest letter is not in it."""

    prompt: str
    seed: int
    limit: int
    stop: str
    guess: str
    cells: list[tuple[int, str]] = field(default_factory=list)
    new: str = ""
    runs: list[str] = field(default_factory=list)
    ended: bool = False
    position: int = 0  # of the newest letter

    @property
    def newest(self) -> str:
        return (self.prompt + self.new)[-1]


class Machine:
    """A cache that is cut back after each step."""

    def __init__(self, most: int) -> None:
        self.most = most

    def play(self, requests: Sequence[Request]) -> list[list[str]]:
        """What each request was given in each of its steps, all of them side by side."""
        rows = [Row(*request) for request in requests]
        for row in rows:
            row.cells = list(enumerate(row.prompt[:-1]))
            row.position = len(row.prompt) - 1
        while going := [row for row in rows if not row.ended]:
            self.step(going)
        return [row.runs for row in rows]

    def step(self, rows: list[Row]) -> None:
        drafts = [self.drafts(row) for row in rows]
        chosen = [self.verify(row, mine, drafts[:at]) for at, (row, mine) in enumerate(zip(rows, drafts, strict=True))]
        kept = [self.kept(row, *pair) for row, pair in zip(rows, zip(drafts, chosen, strict=True), strict=True)]
        for row, mine, letters, count in zip(rows, drafts, chosen, self.shared(kept), strict=True):
            self.keep(row, len(mine), count)
            self.give(row, self.run(mine, letters, count))

    def room(self, row: Row) -> int:
        return min(row.limit - len(row.new), CONTEXT - len(row.prompt) - len(row.new))

    def drafts(self, row: Row) -> str:
        begin = len(row.new)
        return row.guess[begin : begin + min(self.most, self.room(row) - 1)].split("-")[0]

    def place(self, row: Row, at: int, ahead: list[str]) -> int:
        return len(row.new) + at

    def verify(self, row: Row, drafts: str, ahead: list[str]) -> str:
        """The letter of each place, and one more; the cache then holds all that was read."""
        letters = ""
        for at, letter in enumerate(row.newest + drafts):
            row.cells.append((row.position + at, letter))
            letters += choose(row.cells, row.seed, self.place(row, at, ahead))
        return letters

    def kept(self, row: Row, drafts: str, letters: str) -> int:
        return next((at for at, draft in enumerate(drafts) if draft != letters[at]), len(drafts))

    def shared(self, kept: list[int]) -> list[int]:
        return kept

    def keep(self, row: Row, brought: int, kept: int) -> None:
        """The cache holds what was kept, and the next letter stands after it."""
        del row.cells[len(row.cells) - brought + kept :]
        row.position += kept + 1

    def run(self, drafts: str, letters: str, kept: int) -> str:
        return letters[: kept + 1]

    def give(self, row: Row, run: str) -> None:
        """Letter by letter, up to the one that ends the row."""
        given = ""
        for letter in run:
            given += letter
            row.new += letter
            if self.ends(row, letter, given == run):
                row.ended = True
                break
        row.runs.append(given)

    def ends(self, row: Row, letter: str, last: bool) -> bool:
        return letter in row.stop or len(row.new) == row.limit or len(row.prompt + row.new) == CONTEXT


class Naive(Machine):
    """It keeps no cache: each step reads the whole text anew."""

    def verify(self, row: Row, drafts: str, ahead: list[str]) -> str:
        row.cells = list(enumerate(row.prompt + row.new))[:-1]
        return super().verify(row, drafts, ahead)


class Overwriting(Machine):
    """It leaves rejected letters where they are, and writes over them before it reads there."""

    def verify(self, row: Row, drafts: str, ahead: list[str]) -> str:
        del row.cells[row.position :]
        return super().verify(row, drafts, ahead)

    def keep(self, row: Row, brought: int, kept: int) -> None:
        row.position += kept + 1


class LastRowFirst(Machine):
    """It takes the rows of a step from the last one to the first."""

    def step(self, rows: list[Row]) -> None:
        super().step(rows[::-1])


class LastLetterAlone(Machine):
    """A stop in the middle of a run is not seen."""

    def ends(self, row: Row, letter: str, last: bool) -> bool:
        return (letter in row.stop and last) or len(row.new) == row.limit or len(row.prompt + row.new) == CONTEXT


class LimitAfterTheRun(Machine):
    """Drafts fill what the limit has left, and the letter after them is given as well."""

    def drafts(self, row: Row) -> str:
        begin, room = len(row.new), CONTEXT - len(row.prompt) - len(row.new) - 1
        return row.guess[begin : begin + min(self.most, row.limit - begin, room)].split("-")[0]

    def ends(self, row: Row, letter: str, last: bool) -> bool:
        over = len(row.new) >= row.limit and last
        return letter in row.stop or over or len(row.prompt + row.new) == CONTEXT


class PastTheContext(Machine):
    """The limit cuts drafts, and the context's end is one letter late."""

    def room(self, row: Row) -> int:
        return row.limit - len(row.new)

    def ends(self, row: Row, letter: str, last: bool) -> bool:
        return letter in row.stop or len(row.new) == row.limit or len(row.prompt + row.new) == CONTEXT + 1


class NoiseByStep(Machine):
    """All places of a step have the noise of its first one."""

    def place(self, row: Row, at: int, ahead: list[str]) -> int:
        return len(row.new)


class NeighboursNoise(Machine):
    """Noise is counted through: what rows ahead have guessed takes numbers of it."""

    def place(self, row: Row, at: int, ahead: list[str]) -> int:
        return len(row.new) + at + sum(map(len, ahead))


class NothingRolledBack(Machine):
    """Rejected letters stay in the cache, and are read."""

    def keep(self, row: Row, brought: int, kept: int) -> None:
        row.position += kept + 1


class RejectedPositions(Machine):
    """The next letter's position is that after all drafts, the rejected ones as well."""

    def keep(self, row: Row, brought: int, kept: int) -> None:
        super().keep(row, brought, kept)
        row.position += brought - kept


class ThrownAway(Machine):
    """In place of a wrong draft comes what was chosen after it."""

    def run(self, drafts: str, letters: str, kept: int) -> str:
        return letters[:kept] + letters[min(kept + 1, len(drafts))]


class FirstUnseen(Machine):
    """The first draft is kept unseen."""

    def kept(self, row: Row, drafts: str, letters: str) -> int:
        return super().kept(row, letters[: len(drafts[:1])] + drafts[1:], letters)

    def run(self, drafts: str, letters: str, kept: int) -> str:
        return drafts[:1] + letters[len(drafts[:1]) : kept + 1]


class GoodEnough(Machine):
    """A draft is kept if the model thinks nearly as much of it as of its own choice."""

    def kept(self, row: Row, drafts: str, letters: str) -> int:
        cells, begin = row.cells[: len(row.cells) - len(drafts)], len(row.new)
        for at, draft in enumerate(drafts):
            mine, own = (opinion(cells, one) + noise(row.seed, begin + at, one) for one in (draft, letters[at]))
            if own - mine > 200:
                return at
            cells = [*cells, (row.position + at + 1, draft)]
        return len(drafts)

    def run(self, drafts: str, letters: str, kept: int) -> str:
        return drafts[:kept] + letters[kept]


class NoneBehindAll(Machine):
    """Where all drafts are right, no letter comes after them."""

    def kept(self, row: Row, drafts: str, letters: str) -> int:
        kept = super().kept(row, drafts, letters)
        return kept - 1 if kept == len(drafts) > 0 else kept


class AllOrNone(Machine):
    """Where a draft is wrong, the right ones ahead of it are lost as well."""

    def kept(self, row: Row, drafts: str, letters: str) -> int:
        kept = super().kept(row, drafts, letters)
        return kept if kept == len(drafts) else 0


class NoneBehindSome(Machine):
    """Where some drafts are right and one is wrong, no letter comes in its place."""

    def kept(self, row: Row, drafts: str, letters: str) -> int:
        kept = super().kept(row, drafts, letters)
        return kept - 1 if 0 < kept < len(drafts) else kept


class WrongOneKept(Machine):
    """A wrong draft behind right ones is kept."""

    def run(self, drafts: str, letters: str, kept: int) -> str:
        return drafts[: kept + 1] if 0 < kept < len(drafts) else letters[: kept + 1]


class FirstDashEnds(Machine):
    """Behind the first place without a guess nothing is guessed any more."""

    def drafts(self, row: Row) -> str:
        row.guess = row.guess.split("-")[0]
        return super().drafts(row)


class DashesAreRight(Machine):
    """A place without a guess gets the model's letter, and what is guessed behind it is a draft of the same step."""

    def drafts(self, row: Row) -> str:
        begin, drafts = len(row.new), ""
        for letter in row.guess[begin : begin + min(self.most, self.room(row) - 1)]:
            own = choose([*row.cells, *enumerate(row.newest + drafts, row.position)], row.seed, begin + len(drafts))
            drafts += own if letter == "-" else letter
        return drafts


class SlowestOfAll(Machine):
    """All rows go on by as many letters as the one with the shortest run."""

    def shared(self, kept: list[int]) -> list[int]:
        return [min(kept)] * len(kept)


RIGHT: dict[str, type[Machine]] = {
    "cut-back": Machine, "naive": Naive, "overwriting": Overwriting, "last-row-first": LastRowFirst,
}  # fmt: skip
LIARS: dict[str, type[Machine]] = {
    "last-letter-alone": LastLetterAlone, "limit-after-the-run": LimitAfterTheRun, "past-the-context": PastTheContext,
    "noise-by-step": NoiseByStep, "neighbours-noise": NeighboursNoise, "nothing-rolled-back": NothingRolledBack,
    "rejected-positions": RejectedPositions, "thrown-away": ThrownAway, "first-unseen": FirstUnseen,
    "good-enough": GoodEnough, "none-behind-all": NoneBehindAll, "slowest-of-all": SlowestOfAll,
    "all-or-none": AllOrNone, "none-behind-some": NoneBehindSome, "wrong-one-kept": WrongOneKept,
    "first-dash-ends": FirstDashEnds, "dashes-are-right": DashesAreRight,
}  # fmt: skip
