"""The paged kernel alone: one layer of gpt2's heads at decode, cold L2, inside a graph, against SDPA on a dense cache.

Calls over many copies stand in one captured graph, so that no time is lost between launches; arms take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from nanobench.core.machine import commit, copy_bandwidth, describe
from nanobench.core.records import SCHEMA_VERSION, Machine, Record, Spread
from nanobench.micro.attention_variants import HEAD_SIZE, HEADS, arms, contents
from nanoinfer.devices import choose_device

REPEATS = 7
REPLAYS = 4
BATCHES, CONTEXTS = (1, 8, 64, 256), (128, 512, 1024)


class KernelTime(Record):
    """Seconds of one call of attention for one layer."""

    batch: int
    context: int
    arm: str  # sdpa, sdpa with a mask, paged with block size and splits, or a peer's
    chosen: bool  # whether it is what the engine would run
    seconds: Spread
    bytes_share: float  # of the time that keys and values alone take at the copy bandwidth


class KernelReport(Record):
    """One run of `python -m bench kernels`: gpt2's heads, random keys and values in bfloat16."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["kernels"] = "kernels"
    date: str = ""
    commit: str = ""
    machine: Machine
    copy_bytes_per_s: float
    times: tuple[KernelTime, ...]
    left_out: dict[str, str] = Field(default_factory=dict)  # arms that could not run, with the reason


def measure(device_name: str | None, path: Path, *, batches: tuple[int, ...] = BATCHES) -> KernelReport:
    """Measure every case, print a table, write it to `path`. ValueError without a CUDA GPU."""
    device = choose_device(device_name)
    if device.type != "cuda":
        raise ValueError("the kernel benchmark needs a CUDA GPU: in the interpreter a time says nothing")
    bandwidth = copy_bandwidth(device)
    times: list[KernelTime] = []
    left_out: dict[str, str] = {}
    with torch.inference_mode():
        for batch in batches:
            for context in CONTEXTS:
                found, absent = _case(batch, context, bandwidth, device)
                times, left_out = times + found, left_out | absent
    for name, reason in left_out.items():
        print(f"{name} left out: {reason}")
    report = KernelReport(
        date=datetime.now(timezone.utc).date().isoformat(), commit=commit(), machine=describe(device),
        copy_bytes_per_s=bandwidth, times=tuple(times), left_out=left_out,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return report


def _case(batch: int, context: int, bandwidth: float, device: torch.device) -> tuple[list[KernelTime], dict[str, str]]:
    """All arms at one batch and context, taking turns."""
    q, dense = contents(batch, context, device)
    made, absent = arms(q, dense)
    size = 2 * batch * context * HEADS * HEAD_SIZE * q.dtype.itemsize  # bytes of keys and values
    graphs = [(arm, captured(arm.call, len(dense))) for arm in made]
    samples: dict[str, list[float]] = {arm.name: [] for arm in made}
    for _ in range(REPEATS):
        for arm, graph in graphs:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(REPLAYS):
                graph.replay()
            torch.cuda.synchronize()
            samples[arm.name].append((time.perf_counter() - start) / (REPLAYS * len(dense)))
    found = []
    for arm in made:
        spread = Spread.of(samples[arm.name])
        share = size / bandwidth / spread.median
        found.append(
            KernelTime(batch=batch, context=context, arm=arm.name, chosen=arm.chosen, seconds=spread, bytes_share=share)
        )
        star, case = "*" if arm.chosen else " ", f"B={batch:<4} context {context:<5}"
        print(f"{case} {arm.name:28}{star} {spread.median * 1e6:7.1f} us  {share:6.1%} of the copy")
    return found, absent


def captured(call: Callable[[int], Tensor], copies: int) -> torch.cuda.CUDAGraph:
    """One graph that attends to every copy once."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(copies):
            call(i)
    graph.replay()
    return graph
