"""Machines of several ranks: right ones, and ones with one mistake each. For exercise 8.8.

Their ranks are those of the page "Ranks that disagreed"; five of the mistakes are the page's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nanocourse.exercises.chapters import run_folder

_lies = run_folder(Path(__file__).parents[1] / "lies")
toy, wrong = _lies("toy"), _lies("wrong")
Asked, Rank, Row = toy.Asked, toy.Rank, toy.Row
Request = tuple[str, int, int, int]  # prompt, seed, limit, patience
LETTERS, RANKS, LONGEST, ROOM = toy.LETTERS, 4, 48, 24  # ranks at most; letters of a text; blocks


def play(kind: type[Any], ranks: int, luck: int, requests: list[Request]) -> list[list[str] | None]:
    """What each rank has written for each request; None for a rank that never ends. Later ranks have less memory."""
    asked = [Asked(prompt, limit, seed, patience) for prompt, seed, limit, patience in requests]
    told = _lies("play").play(kind, [ROOM - 4 * rank for rank in range(ranks)], asked, luck)
    return [None if end else texts for texts, end in told]


def plain(prompt: str, seed: int, count: int) -> str:
    """So many letters behind the prompt, by one rank."""
    (texts,) = play(Rank, 1, 0, [(prompt, seed, count, 0)])
    assert texts is not None
    return texts[0]


class OneSlot(Rank):  # type: ignore[misc, valid-type]
    """It has one slot for what is exchanged, and ranks meet once more when all have read."""

    def slot(self, kind: str) -> int:
        return 0

    def exchange(self, kind: str, mine: Any) -> Any:
        every = yield from super().exchange(kind, mine)
        call = self.calls[kind]
        self.shared["read", kind, self.rank] = call
        yield lambda: all(self.shared["read", kind, rank] >= call for rank in range(self.size))
        return every


class FirstDraws(Rank):  # type: ignore[misc, valid-type]
    """Its first rank chooses all letters and tells the others."""

    def step(self) -> Any:
        before = {name: len(row.ids) for name, row in self.rows.items()}
        yield from super().step()
        mine = {name: row.ids[-1] for name, row in self.rows.items()}
        chosen, *_ = yield from self.exchange("chosen", mine)
        for name, row in self.rows.items():
            del row.ids[before[name] :]
            self.write(row, chosen[name])

    def noise(self, row: Any, count: int) -> list[int]:
        noise: list[int] = super().noise(row, count)
        return noise if self.rank == 0 else [0] * count


class OneRow(Rank):  # type: ignore[misc, valid-type]
    """It writes one text behind the other."""

    def planned(self) -> Any:
        over, begun = super().planned()
        return over, begun[: len(over) + 1 - len(self.rows)]


class BiasOnEach(Rank):  # type: ignore[misc, valid-type]
    """Each rank adds the bias, and the sum has it as often as there are ranks."""

    def bias(self) -> int:
        return int(toy.BIAS)


class LettersLost(Rank):  # type: ignore[misc, valid-type]
    """The letters are divided among the ranks, and nobody has those that are left over."""

    def own(self) -> range:
        width = len(toy.LETTERS) // self.size
        return range(self.rank * width, (self.rank + 1) * width)


class OwnNumbers(Rank):  # type: ignore[misc, valid-type]
    """A letter's noise goes by its number within its rank."""

    def noise(self, row: Any, count: int) -> list[int]:
        width = len(self.own())
        noise: list[int] = super().noise(row, width)
        return [noise[letter % width] for letter in range(count)]


class LastUndrawn(Rank):  # type: ignore[misc, valid-type]
    """The last letters of a request are read by no later step, and only the first rank draws them."""

    def noise(self, row: Any, count: int) -> list[int]:
        last = row.new >= row.asked.letters - len(row.asked.prompt)
        noise: list[int] = super().noise(row, count)
        return [0] * count if last and self.rank else noise


class LastClock(Rank):  # type: ignore[misc, valid-type]
    """All ranks obey the last one, and so its clock."""

    def plan(self) -> Any:
        plans = yield from self.exchange("plans", self.planned())
        return plans[-1]


class EntersAlone(Rank):  # type: ignore[misc, valid-type]
    """Where a request's patience is over, the first rank calls for an exchange of which the others do not know."""

    def plan(self) -> Any:
        plan = yield from super().plan()
        if self.rank == 0 and any(self.rows[name].new < self.rows[name].asked.letters for name in plan[0]):
            yield from self.exchange("late", plan[0])
        return plan


class OwnOrder(Rank):  # type: ignore[misc, valid-type]
    """Later ranks take the rows of a step from the last one to the first."""

    def step(self) -> Any:
        self.rows = dict(sorted(self.rows.items(), reverse=self.rank > 0))
        yield from super().step()


class FirstTwo(Rank):  # type: ignore[misc, valid-type]
    """Nobody waits for a third rank."""

    def exchange(self, kind: str, mine: Any) -> Any:
        size, self.size = self.size, min(self.size, 2)
        every = yield from super().exchange(kind, mine)
        self.size = size
        for rank in range(2, size):
            yield None
            every.append(self.shared[kind, self.slot(kind), rank] or mine)
        return every


RIGHT: dict[str, type[Any]] = {"two-slots": Rank, "one-slot": OneSlot, "first-draws": FirstDraws, "one-row": OneRow}
LIARS: dict[str, type[Any]] = {
    "padding-wins": wrong.PaddingWins, "letters-lost": LettersLost, "bias-on-each": BiasOnEach,
    "own-dice": wrong.OwnDice, "own-numbers": OwnNumbers, "last-undrawn": LastUndrawn,
    "own-clock": wrong.OwnClock, "last-clock": LastClock, "enters-alone": EntersAlone,
    "own-pool": wrong.OwnPool, "own-order": OwnOrder, "still-read": wrong.StillRead, "first-two": FirstTwo,
}  # fmt: skip
