"""The outcome of a case: medians, shares and memory in one record, and the line that is printed of it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from nanobench.core.case_runner import CaseRunner, counters, graph_counters, release_memory
from nanobench.core.machine import ClockLog, launches, memory_now
from nanobench.core.presets import limit_seconds
from nanobench.core.records import Report, Result, Spread
from nanoinfer.model.gpt2 import GPT2

IN_CACHE = 2  # weights that fit into L2 this many times are not read from memory: no share of the limit is given
OVER = "above 100%: the copy was timed while the machine was busy, or weights came from a CPU's cache; run it again"


def outcome(runner: CaseRunner, model: GPT2, prompts: Tensor, report: Report, clocks: ClockLog) -> Result:
    """The record of a case whose timed runs are done; memory and launches take further runs."""
    case, counted = runner.case, counters(runner.system)
    generate, ttft = Spread.of(runner.generate_s), Spread.of(runner.ttft_s)
    step_s = (generate.median - ttft.median) / (case.new_tokens - 1)
    context = case.prompt_tokens + case.new_tokens / 2  # the mean
    least = limit_seconds(model.config, model.dtype.itemsize, case.batch, context, report.copy_bytes_per_s)
    weights = sum(p.numel() for p in model.parameters()) * model.dtype.itemsize
    in_cache = weights * IN_CACHE < (report.machine.l2_bytes or 0)
    release_memory(model.device)
    before = memory_now(model.device)
    if before is not None:
        runner.system.generate(prompts, case.new_tokens)
    peak = memory_now(model.device, peak=True)
    kernels, calls = _launches(runner, prompts, model.device)
    return Result(
        case=case,
        status="ok",
        reason=getattr(runner.system, "note", ""),
        generate_s=generate,
        ttft_s=ttft,
        tokens=case.batch * case.new_tokens,
        tokens_per_s=case.batch / step_s,
        floor_share=None if in_cache else least / step_s,
        first_s=runner.first_s,
        compile_s=runner.compile_s,
        compiles=runner.compiles,
        launches_per_step=kernels,
        calls_per_step=calls,
        memory_before=before,
        memory_peak=peak,
        graphs=graph_counters(runner.counted, counted),
        clocks=clocks.take(),
        **runner.prepared.facts,
    )


def _launches(runner: CaseRunner, prompts: Tensor, device: torch.device) -> tuple[float | None, float | None]:
    """Kernels of a decode step and the calls that launch them: those of five tokens less those of one, a quarter each.

    None on a CPU, and for a system in another process.
    """
    if device.type != "cuda":
        return None, None
    many, one = (launches(partial(runner.system.generate, prompts, n)) for n in (5, 1))
    return ((many[0] - one[0]) / 4, (many[1] - one[1]) / 4) if many[0] else (None, None)


def summary(result: Result) -> str:
    """A case as it is printed, in one line or two."""
    case = result.case
    start = f"{case.model} B={case.batch:<4} {case.engine:28}"
    if result.status != "ok" or not (result.generate_s and result.ttft_s and result.tokens_per_s):
        return f"{start} {result.status}: {result.reason}"
    spread = (result.generate_s.p90 - result.generate_s.p10) / result.generate_s.median
    share = f"{result.floor_share:6.1%} of the limit" if result.floor_share is not None else "in cache"
    whole = result.tokens / result.generate_s.median
    speed = (
        f"{result.tokens_per_s:10,.0f} tok/s ({whole:9,.0f} of the whole)  TTFT {result.ttft_s.median * 1e3:8.2f} ms"
    )
    text = f"{start} {speed}  {share}  spread {spread:.1%} of {len(result.generate_s.samples)}"
    if result.graphs is not None and result.graphs.hit_rate is not None:
        text += "; ".join([f"  replayed {result.graphs.hit_rate:.1%}", *result.graphs.fallbacks])
    if result.reason:
        text += f"\n{start} {result.reason}"
    if (result.floor_share or 0) > 1:
        text += f"\n{start} {OVER}"
    if result.compiles:
        text += f"\n{start} compiled {result.compiles} times within the timed runs: the times are not valid"
    return text
