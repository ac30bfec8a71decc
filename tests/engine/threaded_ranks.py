"""Ranks as threads of one process: a `Group` without processes, for tests of what ranks compute."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class ThreadGroup:
    """One rank's end; `places` are common to all."""

    def __init__(self, rank: int, places: list[Any], barrier: Barrier) -> None:
        self.rank, self.size, self._places, self._barrier = rank, len(places), places, barrier
        self.sums, self.inbox = 0, None  # how many all-reduces there were
        self.abort = barrier.abort

    def _exchange(self, x: Any) -> list[Any]:
        self._places[self.rank] = x
        self._barrier.wait()
        every = list(self._places)
        self._barrier.wait()  # nobody writes anew before all have read
        return every

    def all_reduce(self, x: Tensor) -> Tensor:
        self.sums += 1
        return x.copy_(torch.stack(self._exchange(x.clone())).sum(0))

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.stack(self._exchange(x))

    def least(self, number: int) -> int:
        return min(self._exchange(number))


def on_ranks(size: int, run: Callable[[Any], T]) -> list[T]:
    """What run(group) returns on each of so many ranks."""
    places: list[Any] = [None] * size
    barrier = Barrier(size, timeout=60)

    def guarded(rank: int) -> T:
        try:
            return run(ThreadGroup(rank, places, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, range(size)))
