"""One decode step of each engine, by torch's profiler: the host's operators and launches, the GPU's kernels.

torch.profiler records every operator, launch and kernel, and slows the host down; so the same steps are also timed
without it, and both times are in the record.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
import typer

from nanobench.core.machine import place, stamp
from nanobench.core.records import Record, ResultsFile
from nanobench.core.timing import seconds
from nanobench.micro.queue_load import greedy
from nanobench.options import Device, Model, Out
from nanoinfer import LLM
from nanoinfer.config import ENGINES
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model

WARM_UP = 8
STEPS = 15  # the one of median length is kept
AHEAD = 8  # spare tokens: the host launches some steps ahead, and a step that ends a row does more work
MARK = "nanoinfer decode step"

HostKind = Literal["operator", "launch", "wait"]


class HostEvent(Record):
    """Something the host did: an operator of torch (the outermost), a call that launches, or one that waits."""

    name: str
    kind: HostKind
    start_us: float  # since the step began
    duration_us: float


class Kernel(Record):
    """Something the GPU ran: a kernel, a copy or a fill of memory."""

    name: str
    start_us: float
    duration_us: float


class StepTimeline(Record):
    """One decode step of one engine."""

    engine: str
    duration_us: float  # with the profiler on
    unprofiled_us: float  # the median of as many steps without it
    host: tuple[HostEvent, ...]
    kernels: tuple[Kernel, ...]  # empty on a CPU

    def count(self, kind: HostKind) -> int:
        """Host events of one kind."""
        return sum(event.kind == kind for event in self.host)

    @property
    def busy(self) -> float:
        """Share of the step in which the GPU runs something: the union of its kernels' times."""
        total, until = 0.0, 0.0
        for kernel in sorted(self.kernels, key=lambda k: k.start_us):
            end = kernel.start_us + kernel.duration_us
            total += max(0.0, end - max(until, kernel.start_us))
            until = max(until, end)
        return total / self.duration_us


class Timeline(ResultsFile):
    """One run of `python -m bench timeline`."""

    JSON: ClassVar = {"indent": None}  # thousands of events

    kind: Literal["timeline"] = "timeline"
    dtype: str
    seed: int
    model: str
    batch: int
    context: int  # tokens of each row when the steps began, about
    steps: tuple[StepTimeline, ...] = ()


def measure(
    out: Out = Path("my-bench/timeline.json"),
    device: Device = None,
    model: Model = "random:gpt2",
    batch: Annotated[int, typer.Option(min=1)] = 1,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each row before the steps.")] = 128,
    engines: Annotated[str | None, typer.Option(help="Comma-separated; by default all of ours.")] = None,
) -> Timeline:
    """Profile some decode steps of each engine and write one of each. ValueError for an engine that is none."""
    chosen = engines.split(",") if engines else list(ENGINES)
    for name in chosen:
        if name not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {name!r}")
    where, dtype = place(device)
    weights = load_model(model, where, dtype, seed=0)
    if where.type == "cpu":
        print("no GPU: the time line has the host's operators, and no kernels below them")
    report = Timeline(seed=0, model=model, batch=batch, context=context, **stamp(where, dtype))
    return report.fill(out, steps=(_of_engine(weights, engine, batch, context) for engine in chosen))


def _of_engine(model: GPT2, engine: str, batch: int, context: int) -> StepTimeline:
    """Steps of three generations: a warm-up, one that is timed and one that is profiled.

    The warm-up takes as many steps as the others: without a cache every step has a shape of its own, and kernels are
    chosen and loaded the first time that a shape occurs. The engine runs in this thread, since the profiler records the
    operators of one.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    llm = LLM(model, engine=engine, max_batch=batch)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, model.config.vocab_size, (batch, context), generator=generator).tolist()
    prefills = -(-batch * context // llm.max_batched_tokens)  # while which the first rows may go on
    params = greedy(prefills + WARM_UP + STEPS + AHEAD)

    with_gpu = [ProfilerActivity.CUDA] if model.device.type == "cuda" else []

    def steps() -> Generator[object]:
        """A generation, once all rows decode."""
        running = llm.core.generate(llm.requests(prompts, params))
        next(rows for rows in running if len(rows) == batch)
        for _ in range(WARM_UP):
            next(running)
        return running

    for _ in range(2):  # the first warms up
        running = steps()
        times = [seconds(partial(next, running), torch.device("cpu")) for _ in range(STEPS)]  # nothing is waited for
        running.close()
    running = steps()
    with profile(activities=[ProfilerActivity.CPU, *with_gpu]) as profiler:
        for _ in range(STEPS):
            with record_function(MARK):
                next(running)
        if with_gpu:
            torch.cuda.synchronize()
    running.close()
    return pick(engine, list(profiler.events() or ()), 1e6 * statistics.median(times))


def pick(engine: str, events: list[Any], unprofiled_us: float) -> StepTimeline:
    """The step of median length, out of the profiler's events.

    On a GPU a step begins when the copy of the previous step's tokens has ended. The host may be some steps ahead by
    then: steps that end after the host's last one, while it launches nothing, are left out. Where nothing is copied, a
    step is what the host did under one mark.
    """
    from torch.autograd import DeviceType  # type: ignore[attr-defined]

    # The mark appears on the GPU's side too, as an annotation over its kernels.
    marks = [e.time_range for e in events if e.name == MARK and e.device_type == DeviceType.CPU]
    ends = sorted(e.time_range.end for e in events if e.name.startswith("Memcpy DtoH"))
    host_ends = max(mark.end for mark in marks)
    copied = [end for end in ends if end <= host_ends]
    steps = list(itertools.pairwise(copied)) or [(mark.start, mark.end) for mark in marks]
    begin, end = sorted(steps, key=lambda step: step[1] - step[0])[len(steps) // 2]
    host, kernels = [], []
    for event in sorted(events, key=lambda e: e.time_range.start):
        start, duration = event.time_range.start, event.time_range.end - event.time_range.start
        if event.name == MARK or not begin <= start < end:
            continue
        at = {"start_us": round(start - begin, 2), "duration_us": round(duration, 2)}
        if event.device_type != DeviceType.CPU:
            kernels.append(Kernel(name=event.name[:80], **at))
        elif (kind := _kind(event)) is not None:
            host.append(HostEvent(name=event.name[:80], kind=kind, **at))
    return StepTimeline(
        engine=engine, duration_us=round(end - begin, 2), unprofiled_us=round(unprofiled_us, 2),
        host=tuple(host), kernels=tuple(kernels),
    )  # fmt: skip


def _kind(event: Any) -> HostKind | None:
    """Launches and waits by the name of the driver's call; of operators only the outermost."""
    if event.name.startswith(("cuda", "cu", "hip")):
        if "Synchronize" in event.name or "Wait" in event.name:
            return "wait"
        return "launch" if any(word in event.name for word in ("Launch", "Memcpy", "Memset")) else None
    parent = event.cpu_parent
    return "operator" if parent is None or parent.name == MARK else None
