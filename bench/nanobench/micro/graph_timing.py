"""Calls timed inside captured graphs, so that no time is lost between launches; on a CPU, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nanobench.core.records import Spread

REPLAYS = 4


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
    variants: Mapping[str, Callable[[int], Tensor]], calls: int, repeats: int, on_gpu: bool = True
) -> dict[str, Spread]:
    """Seconds of one call of each variant, from graphs of `calls` calls each. The variants take turns."""

    def eager(call: Callable[[int], Tensor]) -> Callable[[], object]:
        return lambda: [call(i) for i in range(calls)]

    runs: dict[str, Callable[[], object]] = {
        name: captured(call, calls).replay if on_gpu else eager(call) for name, call in variants.items()
    }
    synchronize = torch.cuda.synchronize if on_gpu else int
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            synchronize()
            start = time.perf_counter()
            for _ in range(REPLAYS):
                run()
            synchronize()
            samples[name].append((time.perf_counter() - start) / (REPLAYS * calls))
    return {name: Spread.of(times) for name, times in samples.items()}
