"""Queues that are wrong: requests wait for ever, room is lost, or a block does not hold what it says.

Each is the right one with one method written otherwise.
"""

from __future__ import annotations

from .toy import SIZE, Queue, Row, Work


class PromptsFirst(Queue):
    """A row that writes waits until no prompt is left to be read."""

    def plan(self) -> Work:
        work: Work = []
        self.feed([row for row in self.running if self.left(row) > 1], work)
        self.begin(work)
        if not work:
            self.feed(self.running, work)
        return work


class NeverFits(Queue):
    """Takes a request that is larger than the pool."""

    def submit(self, prompt: str, letters: int) -> int:
        self.waiting.append(Row(self.asked, prompt, letters, prompt))
        self.asked += 1
        return self.asked - 1


class CountsEarly(Queue):
    """Counts an owner of the blocks that it has found before it knows whether there is room for the others."""

    def admit(self, row: Row) -> bool:
        hits = self.find(row.text)
        wanted = self.blocks_of(len(row.text)) - len(hits)
        for block in hits:
            self.share(block)
        if wanted > len(self.free):
            return False
        row.blocks = hits + [self.take() for _ in range(wanted)]
        row.fed = len(hits) * SIZE
        return True


class OneLetter(Queue):
    """A row that ends with its first letter gives its blocks back, and its place in the batch not."""

    def end(self, row: Row) -> None:
        super().end(row)
        if len(row.text) == len(row.prompt) + 1:
            self.rows -= 1


class CancelKeeps(Queue):
    """A row that is cancelled keeps its blocks."""

    def cancel(self, number: int) -> None:
        self.waiting = [row for row in self.waiting if row.number != number]
        self.running = [row for row in self.running if row.number != number]


class WholePrompts(Queue):
    """A prompt goes in whole, however small the budget is."""

    def begin(self, work: Work) -> None:
        while self.waiting and len(self.running) < self.rows and sum(letters for _, letters in work) < self.budget:
            if not self.admit(self.waiting[0]):
                return
            self.running.append(self.waiting.pop(0))
            work.append((self.running[-1], self.left(self.running[-1])))


class TwoPromptsFirst(Queue):
    """Two steps that read prompts for each one that writes."""

    steps = 0

    def plan(self) -> Work:
        work: Work = []
        self.steps += 1
        if self.steps % 3:
            self.feed([row for row in self.running if self.left(row) > 1], work)
            self.begin(work)
        if not work:
            self.feed(self.running, work)
            self.begin(work)
        return work


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
