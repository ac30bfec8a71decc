"""How ranks come to be: the first one starts the others, and they meet. Chapter 8.

Every rank makes the same `LLM` by the same code, each on its own device, from its own part of the weights. What it
measures alone, such as how many blocks fit, becomes the least of all ranks' before it is used.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import model_config
from nanoinfer.parallel.rank import Rank, Start

dist: Any = torch.distributed  # its types leave half of its names out
HOST = "127.0.0.1"


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
    rank.group, rank.device = Group(store, number, size, device), device
