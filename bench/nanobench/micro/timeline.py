"""One decode step of each engine as a time line: what the host calls above, what the GPU runs below.

torch.profiler sees every operator, every launch and every kernel, and slows the host down while it looks; so the same
steps are also timed without it, and both times are in the record.
"""

from __future__ import annotations

import itertools
import statistics
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import torch

from nanobench.core.machine import commit, describe
from nanobench.core.records import SCHEMA_VERSION, Machine, Record
from nanoinfer import LLM, SamplingParams
from nanoinfer.devices import choose_device, choose_dtype
from nanoinfer.llm import ENGINES
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model

WARM_UP = 8
STEPS = 15  # the one of median length is written down
AHEAD = 8  # tokens more than are used: the host launches some steps ahead, and a step that ends a row does more
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


class Timeline(Record):
    """What `python -m bench timeline` writes."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["timeline"] = "timeline"
    date: str
    commit: str
    dtype: str
    seed: int
    model: str
    batch: int
    context: int  # tokens of each row when the steps began, about
    machine: Machine
    steps: tuple[StepTimeline, ...]


def measure(device_name: str | None, path: Path, model: str, batch: int, context: int, engines: list[str]) -> Timeline:
    """Profile a few decode steps of each engine and write one of each to `path`."""
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
        date=datetime.now(timezone.utc).date().isoformat(), commit=commit(),
        dtype=str(dtype).removeprefix("torch."), seed=0, model=model, batch=batch, context=context,
        machine=describe(device), steps=tuple(steps),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.model_dump_json() + "\n", encoding="utf-8")
    return record


def _of_engine(model: GPT2, engine: str, batch: int, context: int) -> StepTimeline:
    """Some steps unprofiled, then some profiled, of one generation each.

    The first generation is a warm-up of the whole: without a cache each step has a shape of its own, and the first time
    that a shape is met its kernels are chosen and loaded.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    llm = LLM(model, engine=engine, max_batch=batch)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, model.config.vocab_size, (batch, context), generator=generator).tolist()
    params = SamplingParams(temperature=0, max_tokens=1 + WARM_UP + STEPS + AHEAD, ignore_eos=True)

    times: list[float] = []
    with_gpu = [ProfilerActivity.CUDA] if model.device.type == "cuda" else []
    for generation in ("warm-up", "timed", "profiled"):
        pieces = llm.stream(prompts, params)
        for _ in range(1 + WARM_UP):
            _step(pieces, batch)
        if generation != "profiled":
            times = []
            for _ in range(STEPS):
                start = time.perf_counter()
                _step(pieces, batch)
                times.append(time.perf_counter() - start)
            pieces.close()
            continue
        with profile(activities=[ProfilerActivity.CPU, *with_gpu]) as profiler:
            for _ in range(STEPS):
                with record_function(MARK):
                    _step(pieces, batch)
            if with_gpu:
                torch.cuda.synchronize()
        pieces.close()
    return pick(engine, list(profiler.events() or ()), 1e6 * statistics.median(times))


def _step(pieces: Any, batch: int) -> None:
    """One decode step: a piece a row. The first of them runs the step, the others are there already."""
    for _ in itertools.islice(pieces, batch):
        pass


def pick(engine: str, events: list[Any], unprofiled_us: float) -> StepTimeline:
    """The step of median length, out of the profiler's events.

    A step begins on a GPU where the copy of the last one's tokens has ended. The host may be some steps ahead by then:
    those that end after its last one, while it launches nothing, are left out. Where nothing is copied, a step is what
    the host did for one.
    """
    from torch.autograd import DeviceType  # type: ignore[attr-defined]

    # The mark appears on the GPU's side too, as a note that stretches over its kernels.
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


def all_engines(names: str | None) -> list[str]:
    """Names out of a comma-separated list; every engine of ours for None. ValueError for another name."""
    chosen = names.split(",") if names else list(ENGINES)
    for name in chosen:
        if name not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {name!r}")
    return chosen
