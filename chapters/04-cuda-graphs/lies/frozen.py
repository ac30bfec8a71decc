"""What a graph keeps of its capture: numbers of Python's, and kernels that it has or lacks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from .step import gumbel
from .toy import Toy

Make = Callable[..., Toy]
Scene = Callable[[Make], list[str]]


def together(*texts: str, steps: int, **options: Any) -> Scene:
    """A scene: rows that begin so run side by side. options: of the engine."""

    def scene(make: Make) -> list[str]:
        engine = make(**options)
        for text in texts:
            engine.admit(text)
        return engine.run(steps)

    return scene


def in_turn(*rows: tuple[Any, ...], steps: int) -> Scene:
    """A scene: one row after another, each a text with temperature and seed, and a reset after each."""

    def scene(make: Make) -> list[str]:
        engine, told = make(), []
        for row in rows:
            engine.admit(*row)
            told += engine.run(steps)
            engine.reset()
        return told

    return scene


class Escapes(Toy):
    """Attention is launched on a stream of its own, as by a kernel that was never told the current one."""

    def attend(self, B: int, longest: int) -> Tensor:
        if self.recorder is None:
            return super().attend(B, longest)
        out = self.onehot.new_empty(B, self.onehot.shape[0])
        with self.recorder.elsewhere():
            out.copy_(super().attend(B, longest))
        return out


another_input = together("wolf ", steps=11)  # what a replay reads changes, so its result must


class PositionBaked(Toy):
    """The newest letter's position is a number of the host's. Right without a graph, for rows of one length."""

    def positions(self, B: int) -> Tensor:
        offset = len(self.rows[0].text) - 1
        return torch.full((B,), offset, device=self.device)


several_steps = together("crane ", steps=10)  # one is not enough: the first replay stands where the capture stood


class KeyLacksLength(Toy):
    """Graphs are kept by their rows alone, though how many slots they read is baked into them."""

    def key(self, rows: int, longest: int) -> Hashable:
        return rows


captured_short_replayed_long = in_turn(("ox ",), ("blacksmith ",), steps=11)


class CountBaked(Toy):
    """The noise is drawn by a count of steps that the host keeps."""

    def noise(self, B: int) -> Tensor:
        count = self.stepped
        return gumbel(self.seed[:B], torch.full((B,), count, device=self.device))


class CountMoves(Toy):
    """The same count as a tensor, which the host writes before each step: a right engine."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.count = torch.zeros((), dtype=torch.int64, device=self.device)

    def step(self) -> Tensor:
        self.count.fill_(self.stepped)
        return super().step()

    def noise(self, B: int) -> Tensor:
        return gumbel(self.seed[:B], self.count.expand(B))


# Hot enough that every letter is about as likely as any other: a draw that repeats itself is a frozen one.
flat_logits = in_turn(("a ", 50.0, 1), steps=6)


class SeedBaked(Toy):
    """The seed is a number of the host's."""

    def noise(self, B: int) -> Tensor:
        seed = self.rows[0].seed
        return gumbel(torch.full_like(self.seed[:B], seed), self.position[:B])


two_seeds = in_turn(("wolf ", 2.0, 1), ("wolf ", 2.0, 2), ("wolf ", 2.0, 1), steps=3)  # the first again, as at first


class TemperatureBaked(Toy):
    """The temperature is a number of the host's."""

    def heat(self, B: int) -> Tensor:
        return torch.full((B,), self.rows[0].temperature, device=self.device)


two_temperatures = in_turn(("wolf ", 2.0, 1), ("wolf ", 0.0, 1), steps=3)  # hot, then greedy, in one graph
