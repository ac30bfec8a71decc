"""Python numbers in a step: a graph keeps those of its capture, for ever."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from .step import gumbel
from .toy import Toy


class PositionBaked(Toy):
    """The newest letter's position is a number of the host's. Right without a graph, for rows of one length."""

    def positions(self, B: int) -> Tensor:
        offset = len(self.rows[0].text) - 1
        return torch.full((B,), offset, device=self.device)


def several_steps(make: Callable[..., Toy]) -> list[str]:
    """One step is not enough: the first replay stands where the capture stood."""
    engine = make()
    engine.admit("crane ")
    return engine.run(10)


class KeyLacksLength(Toy):
    """Graphs are kept by their rows alone, though how many slots they read is baked into them."""

    def key(self, rows: int, longest: int) -> Hashable:
        return rows


def captured_short_replayed_long(make: Callable[..., Toy]) -> list[str]:
    """The first text of that many rows is short, the second one is long."""
    engine, told = make(), []
    for text in ("ox ", "blacksmith "):
        engine.admit(text)
        told += engine.run(11)
        engine.reset()
    return told


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


def flat_logits(make: Callable[..., Toy]) -> list[str]:
    """Hot enough that every letter is about as likely as any other: a draw that repeats itself is a frozen one."""
    engine = make()
    engine.admit("a ", temperature=50.0, seed=1)
    return engine.run(6)


class SeedBaked(Toy):
    """The seed is a number of the host's."""

    def noise(self, B: int) -> Tensor:
        seed = self.rows[0].seed
        return gumbel(torch.full_like(self.seed[:B], seed), self.position[:B])


def two_seeds(make: Callable[..., Toy]) -> list[str]:
    """Another seed, another text; the first one again, the first text again."""
    engine, told = make(), []
    for seed in (1, 2, 1):
        engine.admit("wolf ", temperature=2.0, seed=seed)
        told += engine.run(3)
        engine.reset()
    return told


class TemperatureBaked(Toy):
    """The temperature is a number of the host's."""

    def heat(self, B: int) -> Tensor:
        return torch.full((B,), self.rows[0].temperature, device=self.device)


def two_temperatures(make: Callable[..., Toy]) -> list[str]:
    """Hot, then greedy, in one graph."""
    engine, told = make(), []
    for temperature in (2.0, 0.0):
        engine.admit("wolf ", temperature=temperature, seed=1)
        told += engine.run(3)
        engine.reset()
    return told
