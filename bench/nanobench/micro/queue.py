"""Requests that arrive while others run: a burst, arrivals, shared prefixes, and a pool too small for all rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch

from nanobench.core.machine import copy_bandwidth, stamp
from nanobench.core.records import ResultsFile
from nanobench.micro.queue_arrivals import ArrivalRuns, arrivals
from nanobench.micro.queue_burst import BurstRuns, burst
from nanobench.micro.queue_load import CPU, Load, say
from nanobench.micro.queue_pool import PoolRuns, pool
from nanobench.micro.queue_prefix import PrefixRuns, prefix
from nanobench.micro.queue_records import Run
from nanoinfer.devices import choose_device, choose_dtype
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model

PARTS = ("burst", "arrivals", "prefix", "pool")
LARGE = "random:gpt2-xl"  # whose prompts keep the GPU busy, so that those not computed are time gained


class QueueReport(ResultsFile):
    """One run of `python -m bench queue`; a part that was not chosen is empty."""

    kind: Literal["queue"] = "queue"
    model: str  # of all parts but prefix, which names its own
    dtype: str
    asked: Load
    copy_bytes_per_s: float  # read plus written
    took_s: dict[str, float]  # by part, with warm_up and all that is not timed
    burst: tuple[BurstRuns, ...] = ()
    arrivals: tuple[ArrivalRuns, ...] = ()
    prefix: tuple[PrefixRuns, ...] = ()
    pool: PoolRuns | None = None

    def save(self, path: Path, **options: Any) -> None:
        super().save(path, **{"indent": None, **options})  # thousands of times: a line for each would double the file


def measure(
    device_name: str | None, path: Path, model: str | None = None, parts: Sequence[str] = (), **changes: Any
) -> QueueReport:
    """Measure the parts, or all; print as it goes, and write `path` after each.

    model: None is random gpt2 on a GPU, where prefix takes gpt2-xl besides, and a random small one on a CPU. changes:
    of the `Load` of this kind of device; those that are None or empty change nothing. ValueError for an unknown part.
    """
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"part must be one of {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    device = choose_device(device_name)
    on_gpu, dtype = device.type == "cuda", choose_dtype(None, device)
    load = Load() if on_gpu else CPU
    load = Load(**load.model_dump() | {name: value for name, value in changes.items() if value})
    name = model or ("random:gpt2" if on_gpu else "random:small")
    known: dict[str, Any] = {
        "model": name, "dtype": str(dtype).removeprefix("torch."), "asked": load,
        "copy_bytes_per_s": copy_bandwidth(device), "took_s": {}, **stamp(device),
    }  # fmt: skip
    gpt = load_model(name, device, dtype, seed=0)
    report = QueueReport(**known)
    for part in PARTS:
        if parts and part not in parts:
            continue
        say(f"{part}: {name}" if part != "prefix" else "prefix")
        started = time.perf_counter()
        found: Any
        if part == "burst":
            found = tuple(burst(gpt, load, report.copy_bytes_per_s))
        elif part == "arrivals":
            found = tuple(arrivals(gpt, load))
        elif part == "prefix":
            names = (LARGE, name) if on_gpu and model is None else (name,)
            found = tuple(_prefix(each, gpt if each == name else None, load, device, dtype) for each in names)
        else:
            found = pool(gpt, load)
        took = {**report.took_s, part: round(time.perf_counter() - started, 1)}
        report = report.model_copy(update={part: found, "took_s": took})
        report.save(path)
        say(f"{part} took {took[part]:.0f} s\n")
    say("\n".join(lines(report)))
    return report


def _prefix(name: str, model: GPT2 | None, load: Load, device: torch.device, dtype: torch.dtype) -> PrefixRuns:
    """model: None where it is still to be loaded."""
    return prefix(name, model or load_model(name, device, dtype, seed=0), load)


def lines(report: QueueReport) -> Iterator[str]:
    """The report as a short table; where there are several runs, each one's tokens a second."""
    for b in report.burst:
        yield (
            f"burst, {b.rows} rows, {b.max_batched_tokens} tokens a step: {_rates(b.runs)} tok/s, the first after"
            f" warm_up; the best is {b.limit_share:.0%} of the bandwidth limit of {b.limit.tokens_per_s:,.0f}"
        )
    for a in report.arrivals:
        yield (
            f"arrivals, {a.max_batched_tokens} tokens a step: p99 of ITL {1e3 * a.alone.itl.p99:.2f} ms alone,"
            f" {1e3 * a.beside.itl.p99:.2f} beside ({a.ratio:.2f} times); p99 of TTFT {1e3 * a.ttft.p99:.1f} ms"
        )
    for p in report.prefix:
        yield f"prefix, {p.model}: {p.computed_share:.3f} of the prompt tokens computed; TTFT {p.gain:.2f} times better"
    if report.pool:
        for arm, runs in (("preemption", report.pool.preemption), ("reservation", report.pool.reservation)):
            ttft, itl = (1e3 * median(times) for times in ([r.ttft.p99 for r in runs], [r.itl.p99 for r in runs]))
            yield f"pool, {arm}: {_rates(runs)} tok/s; p99 of TTFT {ttft:.0f} ms, of ITL {itl:.2f} ms, medians"


def _rates(runs: Sequence[Run]) -> str:
    return ", ".join(f"{run.tokens_per_s:,.0f}" for run in runs)
