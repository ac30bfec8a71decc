"""Other memory under the same name: a graph knows addresses, and no Python."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .frozen import Make, in_turn, together
from .step import spell
from .toy import Toy


class TableRebuilt(Toy):
    """The table is made anew before each step, and bound to the old name."""

    def grow(self) -> None:
        self.table = self.table.clone()
        super().grow()


def another_batch(make: Make) -> list[str]:
    """Two rows; one leaves, another comes. The graph of two rows is the same."""
    engine = make()
    engine.admit("wolf ")
    engine.admit("ox ")
    engine.run(1)
    engine.release(0)
    engine.admit("crane ")
    return engine.run(5)


class Rebound(Toy):
    """The chosen letters are bound to the name that the next step reads. In a replay nothing is bound."""

    def advance(self, chosen: Tensor, B: int) -> Tensor:
        self.before[:B] = self.letter[:B]
        self.letter = torch.cat([chosen * self.live[:B], self.letter[B:]])
        self.position[:B] += self.live[:B]
        return chosen


several_steps = together("wolf ", steps=8)  # each must begin where the last one ended


class ResultKept(Toy):
    """What a caller gets is the graph's own result; detached, but not copied."""

    def result(self, chosen: Tensor) -> Tensor:
        return chosen.detach()


def keep_each_result(make: Make) -> list[str]:
    """Results are kept, and read when all steps are done."""
    engine = make()
    engine.admit("wolf ")
    kept = [engine.step() for _ in range(8)]
    return [spell(torch.stack(kept)[:, 0].tolist())]


class BufferGrew(Toy):
    """The buffer of letters has room for as many rows as there ever were at once; more rows, a new buffer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.letter = self.letter[:1].clone()

    def admit(self, text: str, temperature: float = 0.0, seed: int = 0) -> int:
        more = self.rung(len(self.rows) + 1) - len(self.letter)
        if more > 0:
            self.letter = torch.cat([self.letter, self.letter.new_zeros(more)])
        return super().admit(text, temperature, seed)


def one_two_one(make: Make) -> list[str]:
    """A small batch, a larger one, and the small one again."""
    engine = make()
    engine.admit("wolf ")
    told = engine.run(3)
    engine.admit("ox ")
    told += engine.run(1)
    engine.release(0)
    return told + engine.run(4)


class CacheReplaced(Toy):
    """A reset makes a new cache; the graphs of the old one stay."""

    def reset(self) -> None:
        super().reset()
        self.k, self.v = torch.zeros_like(self.k), torch.zeros_like(self.v)


after_a_reset = in_turn(("wolf ",), ("lark ",), steps=8)  # the same engine, a second conversation
