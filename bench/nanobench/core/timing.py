"""How everything is timed: by the host's clock between two synchronizations, and variants by turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from nanobench.core.records import Spread

REPLAYS = 4
K = TypeVar("K")
T = TypeVar("T")


def synchronize(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Seconds of one of `times` runs in a row, so that launches overlap with the work."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(times):
        run()
    synchronize(device)
    return (time.perf_counter() - start) / times


def by_turns(arms: Mapping[K, Callable[[], T]], turns: int, untimed: int = 1) -> dict[K, list[T]]:
    """What each arm gives in each turn, A B C A B C, so that a slow minute slows all. The first turns warm up."""
    found: dict[K, list[T]] = {name: [] for name in arms}
    for turn in range(-untimed, turns):
        for name, arm in arms.items():
            given = arm()
            if turn >= 0:
                found[name].append(given)
    return found


def captured(call: Callable[[int], Tensor], calls: int) -> torch.cuda.CUDAGraph:
    """One graph of `call(0)` to `call(calls - 1)`."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    graph.replay()
    return graph


def call_seconds(
    variants: Mapping[K, Callable[[int], Tensor]], calls: int, repeats: int, device: torch.device
) -> dict[K, Spread]:
    """Seconds of one call of each variant, by turns: in a captured graph of `calls` calls; on a CPU, one by one."""

    def timed(call: Callable[[int], Tensor]) -> Callable[[], float]:
        run = captured(call, calls).replay if device.type == "cuda" else lambda: [call(i) for i in range(calls)]
        return partial(seconds, run, device, REPLAYS)

    found = by_turns({name: timed(call) for name, call in variants.items()}, repeats, untimed=0)
    return {name: Spread.of([sample / calls for sample in samples]) for name, samples in found.items()}
