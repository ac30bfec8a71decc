"""How long a case, or a whole run, will take: by smaller batches of this run, or by an earlier results file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from nanobench.core.presets import Preset
from nanobench.core.records import Case, Machine, Report, Result
from nanobench.systems import UNFUSED
from nanoinfer.config import ENGINES
from nanoinfer.model.config import ModelConfig

OVERHEAD_S = 0.8  # seconds of a case beside its runs: first tokens, the profiler, memory management
MEMORY_SHARE = 0.8  # of what is free, for keys and values; the rest is for activations


def run_seconds(case: Case, results: Sequence[Result]) -> float:
    """Seconds that one run will take, by a straight line through the two largest smaller batches; 0.0 if none is known.

    Infinite where a smaller batch was over its budget, or the device's memory was full.
    """
    before = sorted(_same(case, results), key=lambda r: r.case.batch)
    before = [r for r in before if r.case.batch < case.batch and r.case.prompt_tokens == case.prompt_tokens]
    if before and before[-1].status in ("over budget", "out of memory"):
        return float("inf")
    points = list({r.case.batch: r.generate_s.median for r in before if r.generate_s is not None}.items())[-2:]
    if not points:
        return 0.0
    batch, seconds = points[-1]
    if len(points) == 1:
        return seconds  # too little to go on: a device that is not full takes the same time for more rows
    slope = max(0.0, (seconds - points[0][1]) / (batch - points[0][0]))
    return seconds + slope * (case.batch - batch)


def _same(case: Case, results: Sequence[Result]) -> list[Result]:
    return [r for r in results if (r.case.model, r.case.engine) == (case.model, case.engine)]


def case_seconds(case: Case, preset: Preset, known: Sequence[Result]) -> float | None:
    """Seconds of a whole case: warm-up and timed runs. None where nothing like it was measured.

    An engine that was never measured is guessed to take as long as the dense one; those with graphs are faster.
    """
    measured = [r for r in _same(case, known) if r.generate_s is not None] or [
        r for r in known if r.generate_s is not None and (r.case.model, r.case.engine) == (case.model, "dense")
    ]
    if not measured:
        return None
    near = min(measured, key=lambda r: abs(r.case.batch - case.batch) + abs(r.case.prompt_tokens - case.prompt_tokens))
    assert near.generate_s is not None
    tokens = case.new_tokens / near.case.new_tokens
    run = near.generate_s.median * tokens
    if near.case.batch < case.batch:  # by the line through what is known: a full device takes longer
        alike = case.model_copy(update={"prompt_tokens": near.case.prompt_tokens, "engine": near.case.engine})
        run = max(run, run_seconds(alike, known) * tokens)
    if run > preset.case_budget_s:
        return 0.0  # it will not be run
    first = max((near.first_s or 0.0) * tokens, run)
    return first + (2 + preset.repeats_of(run)) * run + OVERHEAD_S


def in_words(cases: int, seconds: float, unknown: int) -> str:
    """`12 cases left, about 80 s, and 3 of which nothing is known`."""
    if unknown == cases:
        return f"{cases} cases left"
    rest = f", and {unknown} of which nothing is known yet" if unknown else ""
    return f"{cases} cases left, about {seconds:.0f} s{rest}"


def earlier_results(machine: Machine, preset: Preset, *folders: Path) -> tuple[str, tuple[Result, ...]]:
    """Name and results of an earlier file of the same models and kind of device; empty where there is none.

    Of several files it is one of this very device, then the one with most of the preset's own cases, then of results.
    """
    best: tuple[str, tuple[Result, ...]] = ("", ())
    cases, most = set(preset.cases()), (False, 0, 0)
    for path in [path for folder in folders for path in sorted(folder.glob("*.json"))]:
        try:
            report = Report.load(path)
        except ValueError:
            continue
        results = tuple(r for r in report.results if r.case.model in preset.models)
        fit = report.machine.device == machine.device, sum(r.case in cases for r in results), len(results)
        if results and report.machine.kind == machine.kind and fit > most:
            best, most = (path.name, results), fit
    return best


def largest_batch(config: ModelConfig, preset: Preset, dtype: torch.dtype, free: int | None) -> int:
    """The largest of the preset's batches whose keys and values fit into `free` bytes. None is taken as no limit.

    Our engines keep theirs from the first case to the last, the others while a case runs.
    """
    batches = sorted({*preset.batches, *(preset.other_batches or ())})
    holders = 1 + len({*ENGINES, *UNFUSED} - {"naive"} & {*preset.engines})
    row = preset.max_len * config.kv_numbers * dtype.itemsize  # bytes; each cache has a spare one
    fits = [batch for batch in batches if free is None or holders * (batch + 1) * row <= MEMORY_SHARE * free]
    return fits[-1] if fits else batches[0]
