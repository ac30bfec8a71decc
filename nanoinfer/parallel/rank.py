"""What an `LLM` must know to be one rank of several. Chapter 8.

Every rank makes the same `LLM` by the same code, each on its own device, from its own part of the weights. What it
measures alone, such as how many blocks fit, becomes the least of all ranks' before it is used.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import model_config
from nanoinfer.parallel.ranks import Ranks, Start
from nanoinfer.parallel.sharded import PartOf

if TYPE_CHECKING:
    from nanoinfer.engine.loop import EngineLoop
    from nanoinfer.parallel.group import Group

dist: Any = torch.distributed  # its types leave half of its names out
HOST = "127.0.0.1"


class Rank(Ranks):
    """One rank, and those that do what it does: only the first has any. Once they have met, each has its device."""

    def meet(self, group: Group, device: torch.device) -> None:
        """Go on together."""
        self.group, self.device, self.abort = group, device, group.abort
        self.part = PartOf(group)  # loads its part of a model

    def threads(self, asked: int | None) -> int:
        """Of a step on a CPU."""
        return asked or max(1, (os.cpu_count() or 1) // self.group.size)

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers; what another rank has failed with, if it has."""
        try:
            return self.group.least(number)
        except RuntimeError as error:
            raise self.failed(error) from error

    def agree(self, here: bool) -> bool:
        """Whether it is so on all ranks; a sign of life of all."""
        agreed = self.least(int(here)) == 1
        self.renew()
        return agreed

    def begin(self, loop: EngineLoop) -> None:
        """All is made, here and, once this returns, on the other ranks."""
        self.least(0)
        self.on_failure = loop.fail

    @contextmanager
    def all_do(self, *order: Any) -> Iterator[None]:
        """What follows is done by the others too: between two steps."""
        self.tell(*order)
        try:
            with self.watched(order[0]):
                yield
        except BaseException as error:  # the others may be in the midst of it
            raise self.failed(error) from error


def lead(
    owner: Any, kind: type[Any], settings: dict[str, Any], model: str | Path | GPT2, revision: str | None,
    device: torch.device,
) -> Rank:  # fmt: skip
    """Start the other ranks, which make a `kind` too, and be the first. ValueError: too few devices or heads.

    owner: an `LLM`, with which they end. kind: what is made of a model and these settings.
    """
    size = settings["tensor_parallel"]
    if isinstance(model, GPT2):
        raise ValueError("model must be a name or a path where tensor_parallel is given: every rank loads its own part")
    if not dist.is_available() or os.name == "nt":
        raise ValueError("tensor_parallel needs torch.distributed and pipes as Linux and macOS have them")
    first = device.index or 0
    if device.type == "cuda" and (count := torch.cuda.device_count()) < first + size:
        raise ValueError(f"tensor_parallel {size} needs {first + size} CUDA devices, but there are {count}")
    if (heads := model_config(model, revision).n_head) < size:
        raise ValueError(f"tensor_parallel must be at most the model's {heads} heads, not {size}")
    store = dist.TCPStore(HOST, 0, None, True, wait_for_workers=False)
    rank = Rank([Start(kind, other, store.port, model, revision, settings) for other in range(1, size)])
    try:
        rank.wait_until_here()
        join(rank, store, 0, size, device)
        weakref.finalize(owner, rank.close)  # at exit, too
        return rank
    except BaseException:
        rank.close()
        raise


def join(rank: Rank, store: Any, number: int, size: int, device: torch.device) -> None:
    """Let it meet the others. device: the first one's; on GPUs, each further rank has the next."""
    from nanoinfer.parallel.group import Group  # not every build of torch has what it needs

    if device.type == "cuda":
        device = torch.device("cuda", (device.index or 0) + number)
        torch.cuda.set_device(device)
    rank.meet(Group(store, number, size, device), device)
