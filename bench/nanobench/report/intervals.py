"""Ratios of two measured cases with bootstrap intervals, and what such an interval says."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from nanobench.core.records import Case, Report, Result, Spread
from nanobench.report.values import engine_label, engines_of, factor, significant

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


class Over(NamedTuple):
    """An engine's decode speed over another's, in one case."""

    case: Case
    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        return verdict(self.low, self.high)


def over(report: Report, base: str) -> list[Over]:
    """Every case over that of `base` of the same model, prompt and batch, engines in the book's order."""
    known = sorted((r for r in report.results if r.status == "ok"), key=_shape)
    bases = {_shape(r): r for r in known if r.case.engine == base}
    found = []
    for engine in engines_of(known):
        for top in (r for r in known if r.case.engine == engine != base and _shape(r) in bases):
            bottom = bases[_shape(top)]
            ratio = (top.tokens_per_s or 0) / (bottom.tokens_per_s or 1)
            found.append(Over(top.case, ratio, *interval(top, bottom, "tok/s")))
    return sorted(found, key=lambda one: (one.case.model, one.case.prompt_tokens, one.case.batch))


def _shape(result: Result) -> tuple[str, int, int]:
    return result.case.model, result.case.prompt_tokens, result.case.batch


VERDICTS = {"faster": "faster than", "slower": "slower than", "even": "even with"}


def ratios(report: Report, base: str | None = None) -> Iterator[str]:
    """A line for each batch and engine: decode speed over `base`, the file's first engine unless given.

    ValueError where the file has no results of it.
    """
    named = engines_of(r for r in report.results if r.status == "ok")
    base = base or next(iter(named), "")
    if base not in named:
        which = ", ".join(named) or "none: no case was measured"
        raise ValueError(f"engine must be one of the file's, {which}, not {base!r}")
    for one in over(report, base):
        between = f"{significant(one.ratio):>6} [{significant(one.low)}, {significant(one.high)}]"
        case = f"{one.case.model} B={one.case.batch:<4} prompt {one.case.prompt_tokens:<4}"
        yield f"{case} {engine_label(one.case.engine):30} {between:24} {VERDICTS[one.verdict]} {engine_label(base)}"
