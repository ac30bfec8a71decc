"""A queue over a pool of blocks, small enough to be broken in one place: plain Python, and no tensor.

Its tokens are letters. Its model recites: a prompt begins again and again, in capitals if its first letter is one. It
knows what it reads in the cache alone, as attention does, so a wrong block is a wrong letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SIZE = 4  # letters of a block
Fed = tuple[int, int, str]  # a request's number, how many of its letters a step was fed, and the one that came, or ""
Work = list[tuple["Row", int]]


class Refused(ValueError):
    """A request that could never run."""


@dataclass(eq=False)
class Row:
    """A request. letters: how many it asked for. fed: letters of its text that the model has been given."""

    number: int
    prompt: str
    letters: int
    text: str = ""
    fed: int = 0
    began: int = 0  # what was fed before this step
    blocks: list[int] = field(default_factory=list)


class Queue:
    """Blocks are shared, rows preempted. rows: at most so many run. blocks: of the pool. budget: letters of a step."""

    def __init__(self, rows: int, blocks: int, budget: int) -> None:
        self.rows, self.budget, self.asked = rows, budget, 0
        self.pool = [[("?", False)] * SIZE for _ in range(blocks)]  # a letter, and whether it is recited as a capital
        self.before = self.pool  # as it was ahead of this step
        self.owners = [0] * blocks
        self.free = list(range(blocks))  # they have no owner; the first is taken first
        self.known: dict[str, int] = {}  # a text of whole blocks -> the block that holds its end
        self.waiting: list[Row] = []  # both in order of arrival
        self.running: list[Row] = []

    def submit(self, prompt: str, letters: int) -> int:
        if self.blocks_of(len(prompt) + letters) > len(self.pool):
            raise Refused("it would not fit if it were alone")
        self.waiting.append(Row(self.asked, prompt, letters, prompt))
        self.asked += 1
        return self.asked - 1

    def cancel(self, number: int) -> None:
        self.waiting = [row for row in self.waiting if row.number != number]
        for row in [row for row in self.running if row.number == number]:
            self.end(row)

    def step(self) -> list[Fed]:
        work = self.plan()
        self.before = [list(block) for block in self.pool]
        return [(row.number, letters, self.run(row, letters)) for row, letters in work]

    # Who gets how many letters

    def plan(self) -> Work:
        work: Work = []
        self.feed(self.running, work)
        self.begin(work)
        return work

    def feed(self, rows: Sequence[Row], work: Work) -> None:
        """Rows that run, the oldest first, as far as budget and blocks go."""
        for row in list(rows):
            letters = min(self.left(row), self.budget - sum(letters for _, letters in work))
            if letters and self.grow(row, row.fed + letters):
                work.append((row, letters))

    def begin(self, work: Work) -> None:
        """Rows that wait, in order of arrival: none passes another."""
        while self.waiting and len(self.running) < self.rows and sum(letters for _, letters in work) < self.budget:
            if not self.admit(self.waiting[0]):
                return
            self.running.append(self.waiting.pop(0))
            self.feed(self.running[-1:], work)

    def left(self, row: Row) -> int:
        return len(row.text) - row.fed

    # Blocks

    def blocks_of(self, letters: int) -> int:
        return -(-letters // SIZE)

    def admit(self, row: Row) -> bool:
        """Blocks for the whole text so far, or nothing is changed."""
        hits = self.find(row.text)
        wanted = self.blocks_of(len(row.text)) - len(hits)
        idle = [block for block in hits if not self.owners[block]]  # among the free ones until now
        if wanted > len(self.free) - len(idle):
            return False
        for block in hits:
            self.share(block)
        row.blocks = hits + [self.take() for _ in range(wanted)]
        row.fed = len(hits) * SIZE
        return True

    def find(self, text: str) -> list[int]:
        """Known blocks that the text begins with, but for its last letter, which must be fed."""
        hits: list[int] = []
        for end in range(SIZE, len(text), SIZE):
            if self.key(text[:end]) not in self.known:
                break
            hits.append(self.known[self.key(text[:end])])
        return hits

    def key(self, text: str) -> str:
        return text

    def publish(self, row: Row, length: int) -> None:
        """The whole blocks of the row's first letters can be found from now on."""
        for column in range(min(length // SIZE, len(row.blocks))):
            self.known.setdefault(self.key(row.text[: (column + 1) * SIZE]), row.blocks[column])

    def take(self) -> int:
        """A free block, which is no longer known for what it held."""
        block = self.free.pop(0)
        self.known = {text: known for text, known in self.known.items() if known != block}
        self.owners[block] = 1
        return block

    def share(self, block: int) -> None:
        if not self.owners[block]:
            self.free.remove(block)
        self.owners[block] += 1

    def give_back(self, row: Row) -> None:
        for block in reversed(row.blocks):  # the beginning of a text is kept longest
            self.owners[block] -= 1
            if not self.owners[block]:
                self.free.append(block)
        row.blocks = []

    def grow(self, row: Row, length: int) -> bool:
        """Blocks for so many letters. Where none is free the youngest row is preempted; False if that was this one."""
        while row in self.running and len(row.blocks) < self.blocks_of(length):
            if self.free:
                row.blocks.append(self.take())
            else:
                self.preempt(self.running[-1])
        return row in self.running

    def preempt(self, row: Row) -> None:
        """It waits again, ahead of all others, and is fed anew: its prompt, and what it has written since."""
        self.running.remove(row)
        self.give_back(row)
        row.fed = 0
        self.waiting.insert(0, row)

    def end(self, row: Row) -> None:
        self.running.remove(row)
        self.give_back(row)

    # The model: no row sees what another one writes in the same step

    def run(self, row: Row, letters: int) -> str:
        row.began = row.fed
        for at in range(row.fed, row.fed + letters):
            letter = row.text[at]
            loud = self.read(row, at - 1)[1] if at else letter.isupper()
            self.pool[row.blocks[at // SIZE]][at % SIZE] = letter, loud
        row.fed += letters
        self.publish(row, row.fed)
        if row.fed < len(row.text):
            return ""
        letter, loud = self.read(row, len(row.text) - len(row.prompt))
        new = letter.upper() if loud else letter
        row.text += new
        if len(row.text) == len(row.prompt) + row.letters:
            self.end(row)
        return new

    def read(self, row: Row, at: int) -> tuple[str, bool]:
        pool = self.pool if at >= row.began else self.before
        return pool[row.blocks[at // SIZE]][at % SIZE]
