"""Requests that arrive while others run, shared prefixes, a pool too small for all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from nanobench.core.machine import place, stamp
from nanobench.core.records import Older, ResultsFile
from nanobench.micro.queue_arrivals import ArrivalRuns, arrivals
from nanobench.micro.queue_load import CPU, Load
from nanobench.micro.queue_parts import PoolRuns, PrefixRuns, pool, prefix
from nanobench.options import Device, Out, OwnModel
from nanoinfer.model.weights import load_model

PARTS = ("arrivals", "prefix", "pool")
LARGE = "random:gpt2-xl"  # whose prompts keep the GPU busy, so that those not computed are time gained


class QueueReport(ResultsFile):
    """One run of `python -m bench queue`; a part that was not chosen is empty."""

    JSON: ClassVar = {"indent": None}  # thousands of times: a line for each would double the file

    kind: Literal["queue"] = "queue"
    model: str  # of all parts but prefix, which names its own
    dtype: str
    asked: dict[str, Any]  # as in `Load`
    took_s: dict[str, float] | None = None  # of older runs, and so are the next two
    copy_bytes_per_s: float | None = None
    burst: Older = ()
    arrivals: tuple[ArrivalRuns, ...] = ()
    prefix: tuple[PrefixRuns, ...] = ()
    pool: PoolRuns | None = None


def measure(
    device: Device = None,
    out: Out = Path("my-bench/queue.json"),
    model: OwnModel = None,
    part: Annotated[list[str] | None, typer.Option(help="arrivals, prefix or pool; repeatable.")] = None,
    chunk: Annotated[
        list[int] | None, typer.Option(help="max_batched_tokens of arrivals; 0 is the engine's own choice; repeatable.")
    ] = None,
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
    asked = {"seconds": seconds, "repeats": repeats, "chunks": [each or None for each in chunk or ()]}
    usual = Load() if on_gpu else CPU
    load = Load(**usual.model_dump() | {name: value for name, value in asked.items() if value})
    name = model or ("random:gpt2" if on_gpu else "random:small")
    large = [LARGE] if on_gpu and model is None else []
    gpt = load_model(name, where, dtype, seed=0)
    report = QueueReport(model=name, asked=load.model_dump(mode="json"), **stamp(where, dtype))
    chosen = part or PARTS
    if "arrivals" in chosen:
        report = report.fill(out, arrivals=arrivals(gpt, load))
    if "prefix" in chosen:
        report = report.fill(out, prefix=(prefix(each, load_model(each, where, dtype, seed=0), load) for each in large))
        report = report.fill(out, prefix=[prefix(name, gpt, load)])
    if "pool" in chosen:
        report = report.add(out, pool=pool(gpt, load))
    return report
