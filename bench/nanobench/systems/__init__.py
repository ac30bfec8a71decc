"""The systems that are measured: the engines of the book, and others, one small file each.

A system gets one model's weights, generates greedily, and is timed from outside; `base` describes it. To add one,
write a file with such a class and name it here; where its package is missing it says so and the case is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nanobench.systems.base import Limits, System
from nanobench.systems.ours import FixedDense, Ours
from nanobench.systems.transformers import OPTIONS, Transformers
from nanobench.systems.vllm import VLLM
from nanoinfer.config import ENGINES
from nanoinfer.model.gpt2 import GPT2

Maker = Callable[[GPT2, Limits], System]

PEERS: dict[str, Maker] = {name: partial(Transformers, name) for name in OPTIONS}
# What graphs bring, with nothing else changed: the engines with graphs compute with fused kernels besides.
UNFUSED: dict[str, Maker] = {
    f"{engine}-unfused": partial(Ours, f"{engine}-unfused", engine=engine, fused=False)
    for engine in ENGINES
    if engine.endswith("-graph")
}
ON_REQUEST: dict[str, Maker] = {  # in no preset but those that ask for them by name
    "vllm": VLLM,
    "vllm-triton-attention": partial(VLLM, attention_config={"backend": "TRITON_ATTN"}),
    "dense-1024": partial(FixedDense, "dense-1024", length=1024),
    "dense-compile-reduce-overhead": partial(FixedDense, "dense-compile-reduce-overhead", mode="reduce-overhead"),
    "dense-compile-max-autotune": partial(FixedDense, "dense-compile-max-autotune", mode="max-autotune"),
}
OTHERS: dict[str, Maker] = {**UNFUSED, **PEERS, **ON_REQUEST}


def make(name: str, model: GPT2, limits: Limits) -> System:
    """The system of that name over `model`. Missing where its package is; ValueError for an unknown name."""
    check_name(name)
    return OTHERS[name](model, limits) if name in OTHERS else Ours(name, model, limits)


def check_name(name: str) -> None:
    """ValueError where no system has that name."""
    if name not in ENGINES and name not in OTHERS:
        raise ValueError(f"engine must be one of {', '.join([*ENGINES, *OTHERS])}, not {name!r}")
