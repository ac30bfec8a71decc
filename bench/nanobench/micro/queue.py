"""Requests that arrive while others run: a burst, arrivals, shared prefixes, a pool too small for all rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar, Literal

import typer

from nanobench.core.machine import copy_bandwidth, place, stamp
from nanobench.core.records import ResultsFile
from nanobench.micro.queue_arrivals import ArrivalRuns, arrivals
from nanobench.micro.queue_load import CPU, Load, Run, say
from nanobench.micro.queue_parts import BurstRuns, PoolRuns, PrefixRuns, burst, pool, prefix
from nanobench.options import Device, Out, OwnModel
from nanoinfer.model.weights import load_model

PARTS = ("burst", "arrivals", "prefix", "pool")
LARGE = "random:gpt2-xl"  # whose prompts keep the GPU busy, so that those not computed are time gained


class QueueReport(ResultsFile):
    """One run of `python -m bench queue`; a part that was not chosen is empty."""

    JSON: ClassVar = {"indent": None}  # thousands of times: a line for each would double the file

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


def measure(
    device: Device = None,
    out: Out = Path("my-bench/queue.json"),
    model: OwnModel = None,
    part: Annotated[list[str] | None, typer.Option(help="burst, arrivals, prefix or pool; repeatable.")] = None,
    rows: Annotated[list[int] | None, typer.Option(help="Of burst, at once at most; repeatable.")] = None,
    budget: Annotated[
        list[int] | None, typer.Option(help="max_batched_tokens of burst; 0 is the engine's own choice; repeatable.")
    ] = None,
    chunk: Annotated[list[int] | None, typer.Option(help="The same of arrivals.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Of burst.")] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="Of arrivals.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Runs of all parts but arrivals.")] = None,
) -> QueueReport:
    """Measure the parts, or all; print as it goes, and write after each.

    model: None is random gpt2 on a GPU, where prefix takes gpt2-xl besides, and a random small one on a CPU. ValueError
    for an unknown part.
    """
    if unknown := set(part or ()) - set(PARTS):
        raise ValueError(f"part must be one of {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    where, dtype = place(device)
    on_gpu = where.type == "cuda"
    asked: dict[str, Any] = {"rows": rows, "requests": requests, "seconds": seconds, "repeats": repeats}
    asked |= {name: [each or None for each in given or ()] for name, given in (("budgets", budget), ("chunks", chunk))}
    usual = Load() if on_gpu else CPU
    load = Load(**usual.model_dump() | {name: value for name, value in asked.items() if value})
    name = model or ("random:gpt2" if on_gpu else "random:small")
    large = [LARGE] if on_gpu and model is None else []
    copied, gpt = copy_bandwidth(where), load_model(name, where, dtype, seed=0)
    report = QueueReport(model=name, asked=load, copy_bytes_per_s=copied, took_s={}, **stamp(where, dtype))
    parts: dict[str, Callable[[], Any]] = {
        "burst": lambda: tuple(burst(gpt, load, copied)),
        "arrivals": lambda: tuple(arrivals(gpt, load)),
        "prefix": lambda: (
            *(prefix(each, load_model(each, where, dtype, seed=0), load) for each in large), prefix(name, gpt, load),
        ),
        "pool": lambda: pool(gpt, load),
    }  # fmt: skip
    for each in [each for each in PARTS if each in (part or PARTS)]:
        say(f"{each}: {name}" if each != "prefix" else "prefix")
        started = time.perf_counter()
        found = parts[each]()
        took = round(time.perf_counter() - started, 1)
        report = report.add(out, **{each: found}, took_s={**report.took_s, each: took})
        say(f"{each} took {took:.0f} s\n")
    say("\n".join(lines(report)))
    return report


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
