"""A right engine with CUDA graphs, small enough that each lie is one of its methods written otherwise.

What a graph records is in `step`; here is what the host does: rows that come and go, blocks, and a dict of graphs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .recorders import Recorder
from .step import BLOCK, BLOCKS, LETTERS, ROWS, Step

KEPT = 8  # graphs at most


@dataclass
class Row:
    """What the host knows of a row: its text, the newest letter included, its blocks, and its parameters."""

    text: str
    blocks: list[int]
    temperature: float
    seed: int


class Toy(Step):
    """Rows 0..n-1 are live, all others padding. recorder: None calls every step from Python, without graphs."""

    ladder: tuple[int, ...] = (1, 2, 4, ROWS)  # rows of a graph

    def __init__(self, recorder: Recorder | None = None, device: str = "cpu", fill: float = 0.0) -> None:
        super().__init__(device, fill)
        self.recorder = recorder
        self.graphs: OrderedDict[Hashable, tuple[Any, Tensor]] = OrderedDict()
        self.known: list[Tensor] = []  # what graphs know by address: it lives as long as they do
        self.rows: list[Row] = []
        self.free = list(range(1, BLOCKS))
        self.stepped = self.replayed = self.captures = 0

    def step(self) -> Tensor:
        """The next letter of each live row, as a tensor (n,) of one's own."""
        self.grow()
        n = len(self.rows)
        if self.recorder is None:
            chosen = self.recorded(n, self.longest())
        elif captured := self.captured(self.rung(n), self.longest()):
            graph, chosen = captured
            graph.replay()
            self.replayed += 1
        else:
            chosen = self.recorded(n, self.longest())
        self.stepped += 1
        for row, letter in zip(self.rows, chosen[:n].tolist(), strict=True):
            row.text += LETTERS[letter]
        return self.result(chosen[:n])

    def result(self, chosen: Tensor) -> Tensor:
        """What the caller may keep: the next replay writes into the graph's own."""
        return chosen.clone()

    def rung(self, n: int) -> int:
        """Rows of the smallest graph that n rows fit into."""
        return next(rows for rows in self.ladder if rows >= n)

    def longest(self) -> int:
        """How many slots a step reads: two blocks, or four, or six, ..."""
        most = max(len(row.text) for row in self.rows)
        return -(-most // (2 * BLOCK)) * 2 * BLOCK

    def key(self, rows: int, longest: int) -> Hashable:
        """Under what a graph is kept: all that is baked into it."""
        return rows, longest

    def captured(self, rows: int, longest: int) -> tuple[Any, Tensor] | None:
        """The graph of that shape and its result, captured now if need be."""
        key = self.key(rows, longest)
        if key not in self.graphs:
            self.graphs[key] = self.capture(rows, longest)
        captured = self.graphs[key]
        self.used(key)
        return captured

    def used(self, key: Hashable) -> None:
        """Note that this graph was used; the one that was not for the longest time goes where there are too many."""
        self.graphs.move_to_end(key)
        if len(self.graphs) > KEPT:
            self.graphs.popitem(last=False)

    def capture(self, rows: int, longest: int) -> tuple[Any, Tensor]:
        """Warm a step, then record it. Meanwhile all rows are padding, so that no live one is touched."""
        assert self.recorder is not None
        tensors = self.state()
        self.known += [*tensors, self.k, self.v]
        saved = [tensor.clone() for tensor in tensors]
        self.blank()
        step = partial(self.recorded, rows, longest)
        self.warm(step)
        recorded = self.recorder.record(step)
        for tensor, old in zip(tensors, saved, strict=True):
            tensor.copy_(old)
        self.captures += 1
        return recorded

    def blank(self) -> None:
        """Make every row padding."""
        for tensor in self.state():
            tensor.zero_()

    def warm(self, step: Callable[[], Tensor]) -> None:
        """Run a step before it is recorded: what happens only the first time must not happen in a capture."""
        assert self.recorder is not None
        self.recorder.warm(step)

    def warm_up(self) -> None:
        """Capture the ladder for texts as long as now, also while rows are live."""
        for rows in self.ladder:
            self.captured(rows, self.longest())

    def admit(self, text: str, temperature: float = 0.0, seed: int = 0) -> int:
        """A new row, whose text begins so; returns its number. All but the newest letter is put into the cache."""
        row, ids = len(self.rows), [LETTERS.index(letter) for letter in text]
        self.rows.append(Row(text, [], temperature, seed))
        self.grow()
        numbers = [ids[-1], ids[-2], len(ids) - 1, 1, seed, temperature]
        for tensor, number in zip(self.state(), numbers, strict=False):
            tensor[row] = number
        letters = torch.tensor([0, *ids[:-1]], device=self.device)
        at = torch.arange(len(ids) - 1, device=self.device)
        block = torch.tensor(self.rows[row].blocks, device=self.device)[at // BLOCK]
        self.k[block, at % BLOCK] = self.onehot[letters[:-1]]
        self.v[block, at % BLOCK] = self.onehot[letters[1:]]
        return row

    def grow(self) -> None:
        """Give each row the blocks for its text, and write them into the table, which stays where it is."""
        for at, row in enumerate(self.rows):
            while len(row.blocks) * BLOCK < len(row.text):
                row.blocks.append(self.free.pop())
                self.table[at, len(row.blocks) - 1] = row.blocks[-1]

    def release(self, row: int) -> None:
        """End a row. The last one moves into its place, and the last one's old place is padding."""
        gone, last = self.rows[row], self.rows.pop()
        if gone is not last:
            self.rows[row] = last
            for tensor in self.state():
                tensor[row] = tensor[len(self.rows)].clone()
        self.clear(len(self.rows))
        self.free += reversed(gone.blocks)

    def clear(self, row: int) -> None:
        """Clear a row that has left."""
        for tensor in self.state():
            tensor[row] = 0

    def reset(self) -> None:
        """End all rows, and forget what they wrote."""
        while self.rows:
            self.release(len(self.rows) - 1)
        self.k.zero_()
        self.v.zero_()

    def run(self, steps: int) -> list[str]:
        """Texts after so many steps."""
        for _ in range(steps):
            self.step()
        return self.texts()

    def texts(self) -> list[str]:
        """The live rows' texts."""
        return [row.text for row in self.rows]

    @property
    def missed(self) -> int:
        """Steps that had a graph to expect and were not replayed."""
        return self.stepped - self.replayed if self.recorder else 0
