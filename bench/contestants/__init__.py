"""Those who run in the benchmark: the engines of the book, and peers, one small file each.

A contestant gets one model's weights, generates greedily, and is timed from outside. To add a peer, write a file
with a class of these methods and name it in `PEERS`; where its package is missing it says so and the case is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from nanoinfer.llm import ENGINES
from nanoinfer.model import GPT2


class Missing(Exception):
    """A peer whose package is not installed; the message says which."""


class Contestant(Protocol):
    """One way to generate from given weights."""

    name: str

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        """Greedy tokens, `new_tokens` a row, of prompts (B, T) int64 on the host. Returns when they are on the host."""

    def step_times(self, prompts: Tensor, new_tokens: int) -> list[float]:
        """Seconds between one token and the next, of a run of its own."""


def make(name: str, model: GPT2, max_len: int) -> Contestant:
    """The contestant of that name over `model`. Missing where its package is; ValueError for an unknown name."""
    if name in ENGINES:
        from .ours import Ours

        return Ours(name, model)
    if name in PEERS:
        return PEERS[name]()(model, max_len)
    raise ValueError(f"engine must be one of {', '.join([*ENGINES, *PEERS])}, not {name!r}")


def _transformers(mode: str) -> Callable[[], Callable[[GPT2, int], Contestant]]:
    def load() -> Callable[[GPT2, int], Contestant]:
        from .transformers import Transformers

        return lambda model, max_len: Transformers(mode, model, max_len)

    return load


PEERS: dict[str, Callable[[], Callable[[GPT2, int], Contestant]]] = {
    "transformers-nocache": _transformers("nocache"),
    "transformers": _transformers("default"),
    "transformers-static-compile": _transformers("static-compile"),
}
