"""Queues that are right, each in its own way."""

from __future__ import annotations

import random

from .toy import Fed, Queue, Row, Work


class SharesNothing(Queue):
    """Every row reads its whole prompt."""

    def find(self, text: str) -> list[int]:
        return []


class Reserves(Queue):
    """Admits a row with the blocks of its longest text, so that no row is ever preempted."""

    def admit(self, row: Row) -> bool:
        longest = self.blocks_of(len(row.prompt) + row.letters)
        hits = self.find(row.text)
        idle = [block for block in hits if not self.owners[block]]
        if longest - len(hits) > len(self.free) - len(idle) or not super().admit(row):
            return False
        row.blocks += [self.take() for _ in range(longest - len(row.blocks))]
        return True


class TakesTurns(Queue):
    """A step reads prompts or writes letters, by turns."""

    writes = False

    def plan(self) -> Work:
        work: Work = []
        if self.writes:
            self.feed([row for row in self.running if self.left(row) == 1], work)
        if not work:
            self.feed([row for row in self.running if self.left(row) > 1], work)
            self.begin(work)
        if not work:
            self.feed(self.running, work)
        self.writes = not self.writes
        return work


class LastFreed(Queue):
    """The block that was given back last is taken first."""

    def take(self) -> int:
        self.free.insert(0, self.free.pop())
        return super().take()


class Unordered(Queue):
    """A step lists what it fed in any order."""

    def step(self) -> list[Fed]:
        fed = super().step()
        self.draw.shuffle(fed)
        return fed


class Pauses(Queue):
    """In some steps, never in two in a row, the oldest row alone is fed."""

    paused = False

    def plan(self) -> Work:
        work: Work = []
        self.paused = not self.paused and self.draw.random() < 0.5
        if self.paused:
            self.feed(self.running[:1], work)
        return work or super().plan()


def drawn(seed: str, *kinds: type[Queue]) -> type[Queue]:
    """A queue of all these kinds, the last of which tells what it is; the seed says what it does by chance."""

    def begin(self: Queue, rows: int, blocks: int, budget: int) -> None:
        self.draw = random.Random(seed)
        super(made, self).__init__(rows, blocks, budget)

    made = type(kinds[-1].__name__, kinds, {"__init__": begin, "__doc__": kinds[-1].__doc__})
    return made
