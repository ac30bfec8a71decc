"""What an `LLM` must know to be one rank of several. Chapter 8.

Every rank makes the same `LLM` by the same code, each on its own device, from its own part of the weights. What it
measures alone, such as how many blocks fit, becomes the least of all ranks' before it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from nanoinfer.engine.penalties import AllSamplers
from nanoinfer.engine.samplers import Samplers
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.ops import TorchOps
from nanoinfer.model.weights import open_model
from nanoinfer.parallel.joined import JoinedPenaltySampler, JoinedSamplers
from nanoinfer.parallel.leader import LeadingEngine, RankEngine
from nanoinfer.parallel.naive import LeadingNaive, NaiveRank
from nanoinfer.parallel.ranks import Ranks
from nanoinfer.parallel.shard import Shard
from nanoinfer.parallel.sharded import PartOf, ReducedOps, ShardedGPT2

if TYPE_CHECKING:
    from nanoinfer.engine.loop import EngineLoop
    from nanoinfer.parallel.group import Group

dist: Any = torch.distributed  # its types leave half of its names out
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Rank:
    """One rank. ranks: the others, if this is the first one."""

    shard: Shard
    group: Group
    device: torch.device
    ranks: Ranks | None = None

    @property
    def part(self) -> PartOf:
        """What loads its part of a model."""
        return PartOf(self.shard, self.group)

    def engine(self, naive: bool) -> Any:
        """What makes its engine. naive: one that keeps no keys and values."""
        kinds = (NaiveRank, LeadingNaive) if naive else (RankEngine, LeadingEngine)
        if self.ranks:
            return partial(kinds[1], agree=self.agree, ranks=self.ranks)
        return partial(kinds[0], agree=self.agree)

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers; what another rank has failed with, if it has."""
        try:
            return self.group.least(number)
        except RuntimeError as error:
            raise (self.ranks.failed(error) if self.ranks else error) from error

    def ops(self, ops: TorchOps) -> Any:
        """The same operations, with sums over all ranks."""
        return ReducedOps(ops, self.group)

    def agree(self, here: bool) -> bool:
        """Whether it is so on all ranks; a sign of life of all."""
        agreed = self.least(int(here)) == 1
        if self.ranks:
            self.ranks.renew()
        return agreed

    def begin(self, loop: EngineLoop) -> None:
        """All is made, here and, once this returns, on the other ranks."""
        self.least(0)
        if self.ranks:
            self.ranks.on_failure = loop.fail

    @contextmanager
    def all_do(self, *order: Any) -> Iterator[None]:
        """What follows is done by the other ranks too, if this is the first one: between two steps."""
        if not self.ranks:
            yield
            return
        self.ranks.tell(*order)
        try:
            with self.ranks.watched(order[0]):
                yield
        except BaseException as error:  # the others may be in the midst of it
            raise self.ranks.failed(error) from error

    def alike(self, core: Any) -> bool:
        """Whether all ranks hold the same rows, tokens and positions."""
        with self.all_do("alike"):
            every = self.group.all_gather(core.state.integers)  # (size, 7, rows + 1)
            return bool((every == every[0]).all())

    def close(self) -> None:
        """End the other ranks."""
        if self.ranks:
            self.ranks.close()

    def threads(self, asked: int | None) -> int:
        """Of a step on a CPU."""
        return asked or max(1, (os.cpu_count() or 1) // self.shard.size)

    def samplers(self, base: Samplers, model: GPT2, max_batch: int) -> AllSamplers:
        """What a single device would use, for logits that are cut by vocabulary."""
        assert isinstance(model, ShardedGPT2)
        joined = JoinedSamplers(model, base)
        return AllSamplers(*joined.samplers(), JoinedPenaltySampler(max_batch, model, joined))


def lead(
    kind: type[Any], settings: dict[str, Any], model: str | Path | GPT2, revision: str | None, device: torch.device
) -> Rank:
    """Start the other ranks, which make a `kind` too, and be the first. ValueError: too few devices or heads.

    kind: an `LLM`, made of a model and these settings.
    """
    size = settings["tensor_parallel"]
    if isinstance(model, GPT2):
        raise ValueError("model must be a name or a path where tensor_parallel is given: every rank loads its own part")
    if not dist.is_available() or os.name == "nt":
        raise ValueError("tensor_parallel needs torch.distributed and pipes as Linux and macOS have them")
    first = device.index or 0
    if device.type == "cuda" and (count := torch.cuda.device_count()) < first + size:
        raise ValueError(f"tensor_parallel {size} needs {first + size} CUDA devices, but there are {count}")
    with open_model(model, 0, revision) as (whole, _):
        pass
    if whole.n_head < size:
        raise ValueError(f"tensor_parallel must be at most the model's {whole.n_head} heads, not {size}")
    ranks = Ranks(size)
    try:
        store = dist.TCPStore(HOST, 0, None, True, wait_for_workers=False)
        ranks.start(kind, model, revision, settings, store.port)
        return join(store, 0, size, device, ranks)
    except BaseException:
        ranks.close()
        raise


def join(store: Any, rank: int, size: int, device: torch.device, ranks: Ranks | None = None) -> Rank:
    """Meet the other ranks. device: the first one's; on GPUs, each further rank has the next."""
    from nanoinfer.parallel.group import Group

    own = device if device.type == "cpu" else torch.device("cuda", (device.index or 0) + rank)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    group = Group(store, rank, size, own)
    if ranks:
        ranks.abort = group.abort
    return Rank(Shard(rank, size), group, own, ranks)
