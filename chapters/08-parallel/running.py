"""The running example of chapter 8: the small model on two ranks that are threads, with places where a mistake fits in.

In float64, so that every machine prints the same digits.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from multiprocessing import Pipe
from pathlib import Path
from threading import Barrier
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanobook.examples import load
from nanobook.running import decode, encode
from nanoinfer.cache.dense import DenseCache
from nanoinfer.engine.cpu_sampling import noise
from nanoinfer.engine.samplers import SAMPLERS
from nanoinfer.engine.sampling import scaled
from nanoinfer.engine.state import BatchState
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig
from nanoinfer.parallel.joined import JoinedSamplers
from nanoinfer.parallel.sharded import PartOf, ReducedOps, ShardedGPT2

here = Path(__file__).parent
small = load(here / "small.py")
PROMPT, NEW, SEED, HEAT = "Once upon a time", 40, 5, 0.8
CPU = torch.device("cpu")


class Group:
    """One rank's end, as `nanoinfer.parallel.group.Group`: ranks are threads here. places are common to all."""

    inbox = None  # such sums are a GPU's

    def __init__(self, rank: int, places: list[Any], barrier: Barrier) -> None:
        self.rank, self.size, self._places, self._barrier = rank, len(places), places, barrier

    def _exchange(self, x: Any) -> list[Any]:
        self._places[self.rank] = x
        self._barrier.wait()
        every = list(self._places)
        self._barrier.wait()  # nobody writes anew before all have read
        return every

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of x over all ranks, in its place."""
        return x.copy_(torch.stack(self._exchange(x.clone())).sum(0))

    def all_gather(self, x: Tensor) -> Tensor:
        """x (...) of each rank: (size, ...)."""
        return torch.stack(self._exchange(x))

    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers."""
        return int(min(self._exchange(number)))


def on_ranks(size: int, run: Callable[[Any], Any]) -> list[Any]:
    """What run(group) returns on each of so many ranks. One that fails ends all."""
    places: list[Any] = [None] * size
    barrier = Barrier(size, timeout=60)

    def guarded(rank: int) -> Any:
        try:
            return run(Group(rank, places, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, range(size)))


class Message(NamedTuple):
    """What a rank sends to the one on its right: which part of its numbers, and what they are by then."""

    sender: int
    part: int
    numbers: list[float]


def ring(rows: list[list[float]]) -> tuple[list[list[Message]], list[list[float]]]:
    """small.py's all-reduce of these numbers, a row a rank, over pipes: the messages, and what each ends with."""
    size = len(rows)
    pipes, told = [Pipe(duplex=False) for _ in rows], [[] for _ in rows]  # type: ignore[var-annotated]

    class Noted:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def send(self, numbers: list[float]) -> None:
            at = len(told[self.rank])
            told[self.rank].append(Message(self.rank, (self.rank - at) % size, numbers))
            pipes[self.rank][1].send(numbers)

    def run(rank: int) -> list[float]:
        one = small.Rank(rank, size, pipes[rank - 1][0], Noted(rank))
        return list(one.all_reduce(torch.tensor(rows[rank])).tolist())

    with ThreadPoolExecutor(size) as pool:
        ended = list(pool.map(run, range(size)))
    return [list(step) for step in zip(*told, strict=True)], ended


class Part(PartOf):
    """One rank's part of the small model, as the engine has it."""

    ops: Any = ReducedOps

    def make(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Any:
        model = super().make(config, device, dtype)
        model.ops = self.ops(model.ops._ops, self.group)
        return model


class BiasEverywhere(Part):
    """Each rank adds the whole bias to its term of the sum."""

    def cut(self, name: str, tensor: Any) -> Tensor:
        return tensor[:] if name.endswith("c_proj.bias") else super().cut(name, tensor)


class ResidualReduced(Part):
    """The residual stream is added ahead of the sum, on each rank."""

    class ops(ReducedOps):
        """Sums what ought to be added behind the sum."""

        def linear_update(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return self._ops.linear_update(x, weight, bias)

        def add_norm(self, x: Tensor, update: Tensor, *norm: Any) -> Any:
            return self._ops.add_norm(torch.zeros_like(x), self._group.all_reduce(x + update), *norm)


class CutStraight(Part):
    """c_attn is cut as if it were one matrix: the first rank has all queries, and some keys."""

    def cut(self, name: str, tensor: Any) -> Tensor:
        if ".c_attn." not in name:
            return super().cut(name, tensor)
        heads, D = self.shard.heads(self._config), self._config.head_size
        return tensor[..., 3 * heads.start * D : 3 * heads.stop * D]


class OwnNumbers(JoinedSamplers):
    """Noise goes by the ids as each rank counts its own, from 0."""

    def unfiltered(self, logits: Tensor, rows: BatchState) -> Tensor:
        mine = torch.arange(logits.shape[-1])[None]
        return self._join(scaled(logits.float(), rows.temperature) + noise(rows, mine))


@cache
def texts(part: type[Part] = Part, heat: float = 0.0, samplers: type[JoinedSamplers] = JoinedSamplers) -> list[str]:
    """What each of two ranks writes after the prompt."""
    return [decode(encode(PROMPT) + ids) for ids in new_ids(part, heat, samplers)]


@cache
def new_ids(
    part: type[Part] = Part, heat: float = 0.0, samplers: type[JoinedSamplers] = JoinedSamplers
) -> list[list[int]]:
    """The token ids that each of two ranks generates."""
    return on_ranks(2, lambda group: _generate(group, part, heat, samplers))


@torch.inference_mode()
def _generate(group: Any, part: type[Part], heat: float, samplers: type[JoinedSamplers]) -> list[int]:
    model = part(group).load("small", CPU, torch.float64)
    assert isinstance(model, ShardedGPT2)
    joined, rows = samplers(model, SAMPLERS), BatchState.empty(1, CPU).at(slice(0, 1))
    rows.temperature.fill_(heat)
    rows.seed.fill_(SEED)
    kv = DenseCache(model.config, 1, 128, CPU, torch.float64)
    ids, at = encode(PROMPT), 0
    for step in range(NEW):
        new, T = torch.tensor(ids[at:]), len(ids) - at
        rows.step.fill_(step)
        slots, starts = torch.zeros(T, dtype=torch.int64), torch.tensor([0, T])
        batch = Batch(new, torch.arange(at, len(ids)), slots, starts, longest=T, past=at)
        logits, at = model(batch, kv), len(ids)
        ids.append(int((joined.unfiltered if heat else joined.greedy)(logits, rows)))
    return ids[-NEW:]
