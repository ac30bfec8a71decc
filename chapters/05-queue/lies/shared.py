"""Queues that hand out a block which does not hold what they say, or forget what a row had written."""

from __future__ import annotations

from .toy import SIZE, Queue, Row


class Unwritten(Queue):
    """Blocks can be found from the moment they are taken."""

    def admit(self, row: Row) -> bool:
        admitted = super().admit(row)
        self.publish(row, len(row.text))
        return admitted


class StaleMap(Queue):
    """A block that is taken again is still known for what it held."""

    def take(self) -> int:
        block = self.free.pop(0)
        self.owners[block] = 1
        return block


class HalfResumed(Queue):
    """A row that has been preempted counts as writing as soon as its prompt has been read again."""

    def left(self, row: Row) -> int:
        return len(row.prompt) - row.fed if row.fed < len(row.prompt) else 1

    def run(self, row: Row, letters: int) -> str:
        if row.fed >= len(row.prompt):
            row.fed = len(row.text) - 1  # its newest letter
        return super().run(row, letters)


class LettersAlone(Queue):
    """A block is known by its own letters, whatever stood before them."""

    def key(self, text: str) -> str:
        return text[-SIZE:]
