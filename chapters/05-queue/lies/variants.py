"""Queues that are right, each in its own way."""

from __future__ import annotations

from .toy import Queue, Row, Work


class SharesNothing(Queue):
    """Every row reads its whole prompt."""

    def find(self, text: str) -> list[int]:
        return []


class Reserves(Queue):
    """Admits a row with the blocks of its longest text, so that nobody is ever preempted."""

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
