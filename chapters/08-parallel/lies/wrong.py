"""Ranks that disagree. Each is the right one with one method written otherwise."""

from __future__ import annotations

from random import Random
from typing import Any

from .toy import Moments, Rank, Row


class PaddingWins(Rank):
    """Letters that there are not have rows of zeros in the head, and so a score of zero."""

    def padding(self) -> float:
        return 0.0


class OwnDice(Rank):
    """Each rank draws from a generator of its own."""

    def __init__(self, rank: int, *rest: Any) -> None:
        super().__init__(rank, *rest)
        self.random = Random(rank)

    def noise(self, row: Row, count: int) -> list[int]:
        return [self.random.randrange(3) for _ in range(count)]


class OwnClock(Rank):
    """Each rank asks its own clock who has waited too long, and does as it thinks."""

    def plan(self) -> Moments:
        plans = yield from self.exchange("plans", self.planned())
        return plans[self.rank]


class OwnPool(Rank):
    """Each rank makes its cache as large as its own memory is."""

    def pool(self) -> Moments:
        rooms = yield from self.exchange("rooms", self.room)
        return rooms[self.rank]


class StillRead(Rank):
    """There is one slot for all sums, and a rank writes into it as soon as the others have written theirs."""

    def slot(self, kind: str) -> int:
        return 0
