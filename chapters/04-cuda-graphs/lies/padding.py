"""Padding rows: what they write, what they read, and which live rows that harms."""

from __future__ import annotations

import torch
from torch import Tensor

from .frozen import Make, together
from .toy import Toy


class SlotWraps(Toy):
    """Padding rows write to slot -1, which is meant to be nowhere. Divided by the block size it is the last block."""

    def slots(self, B: int) -> Tensor:
        return torch.where(self.live[:B] == 1, super().slots(B), -1)


# The first row owns the pool's last block, and one row of the graph is padding.
three_in_a_graph_of_four = together("wolf ", "crane ", "ox ", steps=8)


class WeightsAlone(Toy):
    """Hidden slots weigh 0, and their values are read all the same."""

    def readable(self, values: Tensor, hidden: Tensor) -> Tensor:
        return values


# All unwritten memory is NaN: block 0, and the whole cache.
poison = together("wolf ", "crane ", "ox ", steps=5, fill=float("nan"))


class TableLeft(Toy):
    """A row that has gone leaves its table behind."""

    def clear(self, row: int) -> None:
        for tensor in self.state()[:-1]:
            tensor[row] = 0


def four_then_three(make: Make) -> list[str]:
    """A row leaves, and the blocks that it had become another's, in a graph that still has a row in its place."""
    engine = make()
    for text in ("wolf ", "crane ", "ox ", "lark "):
        engine.admit(text)
    engine.run(4)
    engine.release(3)
    return engine.run(14)


class Scaled(Toy):
    """One scale for the whole batch, as where activations are quantized. Padding rows read one slot: a right engine."""

    def attend(self, B: int, longest: int) -> Tensor:
        out = super().attend(B, longest)
        return out / out.abs().amax().clamp(min=1.0)


class LengthZero(Scaled):
    """Padding rows read nothing, so their weights are 0 / 0, and all rows share the scale."""

    def lengths(self, B: int) -> Tensor:
        return self.positions(B) + self.live[:B]


class WarmUpWrites(Toy):
    """The warm-up feeds letter 0 at position 0, of rows whose tables still name live blocks."""

    def blank(self) -> None:
        for tensor in (self.letter, self.before, self.position):
            tensor.zero_()


# The first step of a shape is captured while rows are live; what they have written must be there after it.
captured_in_the_middle = together("wolf ", steps=8)
