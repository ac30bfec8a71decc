"""One decode step of each engine as a time line: what the host calls, and what the GPU runs.

torch.profiler records every operator, launch and kernel, and slows the host down; so the same steps are also timed
without it, and both times are in the record.
"""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Any, Literal

import torch

from nanobench.core.machine import stamp
from nanobench.core.records import Record, ResultsFile
from nanoinfer import LLM, SamplingParams
from nanoinfer.config import ENGINES
from nanoinfer.devices import choose_device, choose_dtype
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

    kind: Literal["timeline"] = "timeline"
    dtype: str
    seed: int
    model: str
    batch: int
    context: int  # tokens of each row when the steps began, about
    steps: tuple[StepTimeline, ...]


def measure(device_name: str | None, path: Path, model: str, batch: int, context: int, engines: list[str]) -> Timeline:
    """Profile some decode steps of each engine and write one of each to `path`."""
    device = choose_device(device_name)
    dtype = choose_dtype(None, device)
    weights = load_model(model, device, dtype, seed=0)
    if device.type == "cpu":
        print("no GPU: the time line has the host's operators, and no kernels below them")
    steps = []
    for engine in engines:
        step = _of_engine(weights, engine, batch, context)
        launches = sum(event.kind == "launch" for event in step.host)
        kernels = f", {launches} launches, {len(step.kernels)} kernels" if device.type == "cuda" else ""
        print(f"{engine:12} {step.duration_us:8.0f} us profiled, {step.unprofiled_us:8.0f} us alone{kernels}")
        steps.append(step)
    record = Timeline(
        dtype=str(dtype).removeprefix("torch."), seed=0, model=model, batch=batch, context=context, steps=tuple(steps),
        **stamp(device),
    )  # fmt: skip
    record.save(path, indent=None)
    return record


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
    params = SamplingParams(temperature=0, max_tokens=prefills + WARM_UP + STEPS + AHEAD, ignore_eos=True)

    times: list[float] = []
    with_gpu = [ProfilerActivity.CUDA] if model.device.type == "cuda" else []
    for generation in ("warm-up", "timed", "profiled"):
        steps = llm.core.generate(llm.requests(prompts, params))
        next(rows for rows in steps if len(rows) == batch)
        for _ in range(WARM_UP):
            next(steps)
        if generation != "profiled":
            times = []
            for _ in range(STEPS):
                start = time.perf_counter()
                next(steps)
                times.append(time.perf_counter() - start)
            steps.close()
            continue
        with profile(activities=[ProfilerActivity.CPU, *with_gpu]) as profiler:
            for _ in range(STEPS):
                with record_function(MARK):
                    next(steps)
            if with_gpu:
                torch.cuda.synchronize()
        steps.close()
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


def engines_named(names: str | None) -> list[str]:
    """The engines in a comma-separated list; every engine of ours for None. ValueError for another name."""
    chosen = names.split(",") if names else list(ENGINES)
    for name in chosen:
        if name not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {name!r}")
    return chosen
