"""What came of a case: medians, shares and memory in one record, and the line that is printed of it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from nanobench.core.case_runner import Entrant, counters, free, graphs_of
from nanobench.core.machine import ClockLog, launches, memory_now, memory_peak
from nanobench.core.presets import floor_seconds
from nanobench.core.records import Report, Result, Spread, quantile
from nanoinfer.model.gpt2 import GPT2

IN_CACHE = 2  # weights that fit this often into L2 are not read from memory, and no share of its floor is given


def outcome(entrant: Entrant, model: GPT2, prompts: Tensor, report: Report, clocks: ClockLog) -> Result:
    """The record of a case whose timed runs are done; single steps, memory and launches are read in further runs."""
    case, made = entrant.case, entrant.made
    counted = counters(entrant.contestant)
    generate, ttft = Spread.of(entrant.generate_s), Spread.of(entrant.ttft_s)
    step_s = (generate.median - ttft.median) / (case.new_tokens - 1)
    context = case.prompt_tokens + case.new_tokens / 2  # the mean
    floor = floor_seconds(model.config, model.dtype.itemsize, case.batch, context, report.copy_bytes_per_s)
    weights = sum(p.numel() for p in model.parameters()) * model.dtype.itemsize
    in_cache = weights * IN_CACHE < (report.machine.l2_bytes or 0)
    free(model.device)
    before = memory_now(model.device)
    steps = sorted(entrant.contestant.step_times(prompts, case.new_tokens))
    peak = memory_peak(model.device)
    kernels, calls = _launches(entrant, prompts, model.device)
    return Result(
        case=case,
        status="ok",
        reason=getattr(entrant.contestant, "note", ""),
        generate_s=generate,
        ttft_s=ttft,
        itl_s=Spread(median=quantile(steps, 0.5), p10=quantile(steps, 0.1), p90=quantile(steps, 0.9), samples=()),
        itl_p99_s=quantile(steps, 0.99),
        tokens=case.batch * case.new_tokens,
        tokens_per_s=case.batch / step_s,
        floor_share=None if in_cache else floor / step_s,
        make_s=made.make_s,
        warm_up_s=made.warm_up_s,
        first_s=entrant.first_s,
        compile_s=entrant.compile_s,
        compiles=entrant.compiles,
        launches_per_step=kernels,
        calls_per_step=calls,
        stages=made.stages,
        memory_before=before,
        memory_peak=peak,
        graphs=graphs_of(entrant.counted, counted),
        clocks=clocks.take(),
    )


def _launches(entrant: Entrant, prompts: Tensor, device: torch.device) -> tuple[float | None, float | None]:
    """Kernels and launching calls of a decode step: of five tokens, less those of one.

    None on a CPU, and for a contestant in another process.
    """
    if device.type != "cuda":
        return None, None
    many, one = (launches(partial(entrant.contestant.generate, prompts, n)) for n in (5, 1))
    return ((many[0] - one[0]) / 4, (many[1] - one[1]) / 4) if many[0] else (None, None)


def line(result: Result) -> str:
    """A case as it is printed."""
    case = result.case
    start = f"{case.model} B={case.batch:<4} {case.engine:28}"
    if result.status != "ok" or not (result.generate_s and result.ttft_s and result.tokens_per_s):
        return f"{start} {result.status}: {result.reason}"
    spread = (result.generate_s.p90 - result.generate_s.p10) / result.generate_s.median
    share = f"{result.floor_share:6.1%} of floor" if result.floor_share is not None else "in cache"
    whole = result.tokens / result.generate_s.median
    speed = (
        f"{result.tokens_per_s:10,.0f} tok/s ({whole:9,.0f} of the whole)  TTFT {result.ttft_s.median * 1e3:8.2f} ms"
    )
    text = f"{start} {speed}  {share}  spread {spread:.1%} of {len(result.generate_s.samples)}"
    if result.graphs is not None and result.graphs.hit_rate is not None:
        text += f"  replayed {result.graphs.hit_rate:.1%}"
    if result.reason:
        text += f"\n{start} {result.reason}"
    if result.compiles:
        text += f"\n{start} compiled {result.compiles} times within the timed runs: not to be believed"
    return text
