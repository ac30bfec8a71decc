"""Those who run in the benchmark: the engines of the book, and others, one small file each.

A contestant gets one model's weights, generates greedily, and is timed from outside. To add one, write a file with a
class of these methods and name it in `OTHERS`; where its package is missing it says so and the case is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from nanoinfer.llm import ENGINES
from nanoinfer.model.gpt2 import GPT2


class Missing(Exception):
    """A contestant whose package is not installed; the message says which."""


@dataclass(frozen=True)
class Limits:
    """The largest case that a contestant will get: for those that size their memory when they are made."""

    max_len: int  # tokens of a row, prompt and new ones
    max_batch: int  # rows


class Contestant(Protocol):
    """One way to generate from given weights.

    Three more are used where a contestant has them: `warm_up()`, called once after it is made and timed apart (graphs
    are captured there); `stats`, the counters of one of our engines; and `note`, what is to be known of its times.
    """

    name: str

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        """Greedy tokens, `new_tokens` a row, of prompts (B, T) int64 on the host. Returns when they are on the host."""

    def step_times(self, prompts: Tensor, new_tokens: int) -> list[float]:
        """Seconds between one token and the next, of a run of its own."""


Maker = Callable[[GPT2, Limits], Contestant]


def make(name: str, model: GPT2, limits: Limits) -> Contestant:
    """The contestant of that name over `model`. Missing where its package is; ValueError for an unknown name."""
    if name in ENGINES:
        from nanobench.systems.ours import Ours

        return Ours(name, model, limits)
    check(name)
    return OTHERS[name]()(model, limits)


def check(name: str) -> None:
    """ValueError where nobody has that name."""
    if name not in ENGINES and name not in OTHERS:
        raise ValueError(f"engine must be one of {', '.join([*ENGINES, *OTHERS])}, not {name!r}")


def _transformers(mode: str) -> Callable[[], Maker]:
    def load() -> Maker:
        from nanobench.systems.transformers import Transformers

        return lambda model, limits: Transformers(mode, model)

    return load


def _vllm() -> Maker:
    from nanobench.systems.vllm import VLLM

    return VLLM


def _dense(name: str, *, length: int | None = None, mode: str | None = None) -> Callable[[], Maker]:
    def load() -> Maker:
        from nanobench.systems.fixed import FixedDense

        return lambda model, limits: FixedDense(name, model, length or limits.max_len, mode)

    return load


def _unfused(engine: str) -> Callable[[], Maker]:
    def load() -> Maker:
        from nanobench.systems.ours import Ours

        return lambda model, limits: Ours(f"{engine}-unfused", model, limits, engine, fused=False)

    return load


PEERS: dict[str, Callable[[], Maker]] = {
    "transformers-nocache": _transformers("nocache"),
    "transformers": _transformers("default"),
    "transformers-static-compile": _transformers("static-compile"),
}
# What graphs bring, with nothing else changed: the engines with graphs compute with fused kernels besides.
UNFUSED = {f"{engine}-unfused": _unfused(engine) for engine in ENGINES if engine.endswith("-graph")}
ON_REQUEST: dict[str, Callable[[], Maker]] = {  # in no preset but those that ask for them by name
    "vllm": _vllm,
    "dense-1024": _dense("dense-1024", length=1024),
    "dense-compile-reduce-overhead": _dense("dense-compile-reduce-overhead", mode="reduce-overhead"),
    "dense-compile-max-autotune": _dense("dense-compile-max-autotune", mode="max-autotune"),
}
OTHERS: dict[str, Callable[[], Maker]] = {**UNFUSED, **PEERS, **ON_REQUEST}
