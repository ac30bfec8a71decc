"""Ratios of two measured cases with bootstrap intervals, and what such an interval says."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from typing import Literal

import numpy as np

from nanobench.core.records import Report, Result, Spread
from nanobench.report.values import batches_of, engine_label, engines_of, factor, models_of, prompts_of, significant

DRAWS = 2000
TOLERANCE = 0.03

Verdict = Literal["faster", "slower", "even"]


def interval(top: Result, bottom: Result, quantity: str) -> tuple[float, float]:
    """95% bootstrap interval of the ratio top / bottom."""
    draws = random.Random(0)
    ratios = [_drawn(top, quantity, draws) / _drawn(bottom, quantity, draws) for _ in range(DRAWS)]
    low, high = np.quantile(ratios, (0.025, 0.975)).tolist()
    return low, high


def _drawn(result: Result, quantity: str, draws: random.Random) -> float:
    """The quantity from as many repeats as there were, drawn with replacement."""
    assert result.generate_s is not None
    assert result.ttft_s is not None
    pairs = list(zip(result.generate_s.samples, result.ttft_s.samples, strict=True))
    taken = draws.choices(pairs, k=len(pairs))
    ttft = statistics.median(first for _, first in taken)
    if quantity == "TTFT":
        return ttft
    whole = statistics.median(whole for whole, _ in taken)
    return result.case.batch * (result.case.new_tokens - 1) / max(whole - ttft, 1e-9)


def verdict(low: float, high: float) -> Verdict:
    """What an interval of a ratio says; "even" where it reaches into 3% around 1."""
    if low > 1 + TOLERANCE:
        return "faster"
    return "slower" if high < 1 - TOLERANCE else "even"


def claimed(top: Spread, bottom: Spread) -> str:
    """The ratio of two medians, as a text claims it. ValueError where their 10-90% ranges overlap: nothing to claim."""
    if top.p10 <= bottom.p90 and bottom.p10 <= top.p90:
        both = " and ".join(f"{each.p10:.3g} to {each.p90:.3g}" for each in (top, bottom))
        raise ValueError(f"no difference can be claimed: the 10-90% ranges overlap, {both}")
    return factor(top.median / bottom.median)


def common(a: Report, b: Report) -> list[tuple[Result, Result]]:
    """The cases that both runs have measured."""
    of = {r.case: r for r in b.results if r.status == "ok"}
    return [(r, of[r.case]) for r in a.results if r.status == "ok" and r.case in of]


VERDICTS = {"faster": "faster than", "slower": "slower than", "even": "even with"}


def ratios(report: Report, base: str | None = None) -> Iterator[str]:
    """A line for each batch and engine: decode speed over `base`, the file's first engine unless given.

    ValueError where the file has no results of it.
    """
    known = [r for r in report.results if r.status == "ok"]
    base = base or next(iter(engines_of(known)), "")
    if not any(r.case.engine == base for r in known):
        named = ", ".join(engines_of(known)) or "none: no case was measured"
        raise ValueError(f"engine must be one of the file's, {named}, not {base!r}")
    for model in models_of(report):
        for prompt in prompts_of(report.find(model=model)):
            here = [r for r in known if (r.case.model, r.case.prompt_tokens) == (model, prompt)]
            for batch in batches_of(here):
                of = {r.case.engine: r for r in here if r.case.batch == batch}
                for engine in engines_of(of.values()):
                    if engine == base or base not in of:
                        continue
                    top, bottom = of[engine], of[base]
                    low, high = interval(top, bottom, "tok/s")
                    ratio = (top.tokens_per_s or 0) / (bottom.tokens_per_s or 1)
                    between = f"{significant(ratio):>6} [{significant(low)}, {significant(high)}]"
                    case = f"{model} B={batch:<4} prompt {prompt:<4} {engine_label(engine):30}"
                    yield f"{case} {between:24} {VERDICTS[verdict(low, high)]} {engine_label(base)}"
