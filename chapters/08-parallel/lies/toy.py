"""An engine on several ranks, small enough to be broken in one place: plain Python, and no tensor.

Its tokens are letters. Its model recites: a prompt begins again and again. A letter's number is cut into parts, one for
each rank's cache, and their sum is the letter. Where ranks no longer have parts of the same letter, the sum is another.
A rank is a generator; each `yield` is a moment at which others may go on.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any, NamedTuple

LETTERS = "abcdefghijklmnopqrstuvwxyz "
UNSURE = "flw"  # all logits are below zero where one of these is to come
BIAS, BLOCK = 6, 4
Moments = Generator[Callable[[], bool] | None, None, Any]  # yields what it waits for, if it waits


class Asked(NamedTuple):
    """letters: how many are wanted. seed: of sampled letters, 0 for greedy. patience: milliseconds, 0 for no end."""

    prompt: str
    letters: int
    seed: int = 0
    patience: int = 0


@dataclass
class Row:
    """A text that is being written. blocks: where in every rank's cache it lies."""

    asked: Asked
    blocks: list[int]
    ids: list[int] = field(default_factory=list)

    @property
    def new(self) -> int:
        return len(self.ids) - len(self.asked.prompt)

    def cell(self, place: int) -> int:
        return self.blocks[place // BLOCK] * BLOCK + place % BLOCK


Plan = tuple[list[int], list[tuple[int, list[int]]]]  # who leaves, and who begins, and in which blocks


class Rank:
    """One of `size` ranks. room: blocks that fit into its memory. shared: memory that all ranks see."""

    def __init__(self, rank: int, size: int, room: int, shared: dict[Any, Any]) -> None:
        self.rank, self.size, self.room, self.shared = rank, size, room, shared
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.rows: dict[int, Row] = {}
        self.texts: dict[int, str] = {}

    def run(self, asked: Sequence[Asked]) -> Moments:
        self.asked, self.waiting = asked, list(range(len(asked)))
        self.blocks = yield from self.pool()
        self.cache = [0] * (BLOCK * self.blocks)
        while self.waiting or self.rows:
            self.follow(*(yield from self.plan()))
            yield from self.step()

    # What ranks do together

    def exchange(self, kind: str, mine: Any) -> Moments:
        """What each rank gives, in the order of the ranks."""
        self.calls[kind] += 1
        call, slot = self.calls[kind], self.slot(kind)
        self.shared[kind, slot, self.rank] = mine
        yield None
        self.shared["ready", kind, self.rank] = call
        yield lambda: all(self.shared["ready", kind, rank] >= call for rank in range(self.size))
        every = []
        for rank in range(self.size):
            yield None
            every.append(self.shared[kind, slot, rank])
        return every

    def slot(self, kind: str) -> int:
        return self.calls[kind] % 2

    def all_reduce(self, terms: list[int]) -> Moments:
        """Sums over all ranks. The buffers are as long as the longest batch, and zero behind a rank's rows."""
        every = yield from self.exchange("sum", terms)
        return [sum(each) for each in zip_longest(*every, fillvalue=0)]

    # What they decide

    def pool(self) -> Moments:
        rooms = yield from self.exchange("rooms", self.room)
        return min(rooms)

    def plan(self) -> Moments:
        plans = yield from self.exchange("plans", self.planned())
        return plans[0]

    def planned(self) -> Plan:
        """What this rank would do: rows leave that have ended, others begin as long as their whole texts fit."""
        over = [name for name, row in self.rows.items() if self.over(row)]
        used = set(chain.from_iterable(row.blocks for name, row in self.rows.items() if name not in over))
        free, begun = [block for block in range(self.blocks) if block not in used], []
        for name in self.waiting:
            need = -(-(len(self.asked[name].prompt) + self.asked[name].letters) // BLOCK)
            if need > len(free):
                break
            begun.append((name, free[:need]))
            del free[:need]
        return over, begun

    def over(self, row: Row) -> bool:
        late = row.asked.patience and self.clock(row) >= row.asked.patience
        return row.new == row.asked.letters or bool(late)

    def clock(self, row: Row) -> int:
        """Milliseconds since it has begun. Each rank's clock is one ahead of the one before."""
        return 10 * row.new + self.rank

    def follow(self, over: list[int], begun: list[tuple[int, list[int]]]) -> None:
        for name in over:
            if row := self.rows.pop(name, None):
                self.texts[name] = text(row)
        for name, blocks in begun:
            self.waiting.remove(name)
            row = self.rows[name] = Row(self.asked[name], blocks)
            for letter in row.asked.prompt:
                self.write(row, LETTERS.index(letter))

    # The model

    def step(self) -> Moments:
        """A letter for each row, by two sums over all ranks; its scores are cut by letters."""
        x = yield from self.all_reduce([self.attention(row) for row in self.rows.values()])
        more = yield from self.all_reduce([self.mlp(one) for one in x])
        hidden = [one + other for one, other in zip(x, more, strict=False)]
        every = yield from self.exchange("scores", [self.head(one) for one in hidden])
        for row, scores in zip(self.rows.values(), zip_longest(*every, fillvalue=()), strict=False):
            self.write(row, self.choose(row, [*chain.from_iterable(scores)]))

    def attention(self, row: Row) -> int:
        """This rank's part of the letter that stood here when the prompt was said last."""
        return self.cache[row.cell(len(row.ids) - len(row.asked.prompt))]

    def mlp(self, one: int) -> int:
        return self.part(one) + self.bias()

    def bias(self) -> int:
        return BIAS if self.rank == 0 else 0

    def part(self, number: int) -> int:
        return number // self.size + (self.rank < number % self.size)

    def own(self) -> range:
        """The letters whose scores it computes, as many on each rank; the last ones of all are none."""
        width = -(-len(LETTERS) // self.size)
        return range(self.rank * width, (self.rank + 1) * width)

    def head(self, hidden: int) -> list[float]:
        return [self.score(letter, hidden) if letter < len(LETTERS) else self.padding() for letter in self.own()]

    def score(self, letter: int, hidden: int) -> int:
        """Less, the further the letter is from the one that was meant."""
        meant = (hidden - BIAS) // 2
        best = -3 if 0 <= meant < len(LETTERS) and LETTERS[meant] in UNSURE else 5
        return best - abs(2 * letter + BIAS - hidden)

    def padding(self) -> float:
        return -math.inf

    def choose(self, row: Row, scores: list[float]) -> int:
        noise = self.noise(row, len(scores)) if row.asked.seed else [0] * len(scores)
        return max(range(len(scores)), key=lambda letter: scores[letter] + noise[letter])

    def noise(self, row: Row, count: int) -> list[int]:
        return [zlib.crc32(f"{row.asked.seed} {row.new} {letter}".encode()) % 3 for letter in range(count)]

    def write(self, row: Row, letter: int) -> None:
        row.ids.append(letter)
        self.cache[row.cell(len(row.ids) - 1)] = self.part(letter)


def text(row: Row) -> str:
    """What it has said. An id that is no letter is a question mark."""
    return "".join(LETTERS[one] if one < len(LETTERS) else "?" for one in row.ids[len(row.asked.prompt) :])
