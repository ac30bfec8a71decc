"""Two runs compared: ratios with intervals, and whether a difference exceeds the spread.

A ratio is of medians; its interval is the 2.5% to 97.5% quantile of 2,000 bootstrap draws over the repeats of both runs
(seeded; each draw takes repeats anew, with their TTFT). Two medians **agree** where they are no further apart than the
larger of the first run's 10-90% range (its width, p90 - p10) and 3% of the first median.

Absolute times of two devices are not compared, but each engine's decode speed over the first engine's: on each machine
an engine is faster than the first one, slower, or even (its interval reaches into 3% around 1); a result holds where
both machines say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanobench.core.records import Case, Report, Spread
from nanobench.report.intervals import TOLERANCE, Over, common, interval, over
from nanobench.report.values import decode, engines_of, models_of, prompts_of, significant


@dataclass(frozen=True)
class Ratio:
    """One quantity of one case: b over a."""

    case: Case
    quantity: str
    ratio: float
    low: float
    high: float
    allowed: float  # how far from 1 the ratio may be

    @property
    def agree(self) -> bool:
        """Whether the medians agree."""
        return abs(self.ratio - 1) <= self.allowed

    @property
    def strain(self) -> float:
        """The difference over what is allowed: above 1 where the medians do not agree."""
        return abs(self.ratio - 1) / self.allowed

    def __str__(self) -> str:
        verdict = "agrees" if self.agree else "differs beyond the spread"
        between = f"[{significant(self.low)}, {significant(self.high)}]"
        numbers = f"{significant(self.ratio):>6} {between:16} ±{self.allowed:5.1%}"
        return f"{case_label(self.case)} {self.quantity:6} {numbers} {verdict}"


def case_label(case: Case) -> str:
    """A case as the start of a line."""
    return f"{case.model} B={case.batch:<4} prompt {case.prompt_tokens:<4} {case.engine:28}"


def allowed(first: Spread) -> float:
    """How far the second median may be from the first, as a share of the first: its 10-90% range, or 3%."""
    return max((first.p90 - first.p10) / first.median, TOLERANCE)


def ratios(a: Report, b: Report) -> Iterator[Ratio]:
    """b over a, for every case that both have measured."""
    for first, second in common(a, b):
        for quantity, spreads in (("tok/s", (decode(first), decode(second))), ("TTFT", (first.ttft_s, second.ttft_s))):
            one, two = spreads
            if one is None or two is None:
                continue
            low, high = interval(second, first, quantity)
            ratio = two.median / one.median
            yield Ratio(first.case, quantity, ratio, low, high, allowed(one))


def compare(first: Path, second: Path) -> int:
    """Print whether the second run agrees with the first. 0 where all medians agree, 1 where one does not.

    ValueError where the two cannot be compared at all.
    """
    a, b = Report.load(first), Report.load(second)
    if a.machine.device != b.machine.device:
        return _compare_machines(a, b)
    if a.dtype != b.dtype:
        raise ValueError(f"dtype must be the same in both files, not {a.dtype} and {b.dtype}")
    if not set(models_of(a)) & set(models_of(b)):
        raise ValueError(f"model must be the same in both files, not {models_of(a)[0]} and {models_of(b)[0]}")
    return _compare_times(a, b)


def _compare_times(a: Report, b: Report) -> int:
    found = list(ratios(a, b))
    if not found:
        raise ValueError("the two files have no measured case in common")
    print(f"{a.machine.device}, {a.dtype}: second over first, with a 95% bootstrap interval")
    for ratio in found:
        print(ratio)
    ended = _ended_otherwise(a, b)
    for line in [*ended, *_alone(a, b)]:
        print(line)
    differ = sum(not ratio.agree for ratio in found)
    rule = f"within the larger of the first run's 10-90% range and {TOLERANCE:.0%}"
    print(f"{len(found) - differ} of {len(found)} medians agree {rule}; {differ} differ")
    worst = max(found, key=lambda ratio: ratio.strain)
    apart = f"{abs(worst.ratio - 1):.1%} apart where {worst.allowed:.1%} is allowed"
    print(f"the worst: {' '.join(case_label(worst.case).split())} {worst.quantity}, {apart}")
    return 1 if differ or any(ended) else 0


def _ended_otherwise(a: Report, b: Report) -> list[str]:
    """Cases that one run measured and the other did not: over budget, out of memory, failed or missing."""
    of = {r.case: r for r in b.results}
    pairs = [(r, of[r.case]) for r in a.results if r.case in of and of[r.case].status != r.status]
    return [f"{case_label(r.case)} {r.status} in the first, {other.status} in the second" for r, other in pairs]


def _alone(a: Report, b: Report) -> list[str]:
    """Cases that are in one file alone, which is no difference."""
    lines = []
    for which, here, there in (("first", a, b), ("second", b, a)):
        known = {r.case for r in there.results}
        alone = [r.case for r in here.results if r.case not in known]
        for engine in dict.fromkeys(case.engine for case in alone):
            batches = sorted({case.batch for case in alone if case.engine == engine})
            lines.append(f"in the {which} file alone: {engine} at B = {', '.join(map(str, batches))}")
    return lines


def comparisons(a: Report, b: Report) -> list[tuple[Over, Over]]:
    """Each engine over the first, in each case that both have: there, in a, and here, in b.

    Where each report has one model and one prompt length, these may differ.
    """
    base = engines_of(a.results)[0]
    several = any(len(models_of(r)) > 1 or len(prompts_of(r.results)) > 1 for r in (a, b))
    keys = ("model", "prompt_tokens", "batch", "engine") if several or common(a, b) else ("batch", "engine")
    there, here = ({tuple(getattr(one.case, key) for key in keys): one for one in over(r, base)} for r in (a, b))
    return [(one, here[key]) for key, one in there.items() if key in here]


def _compare_machines(a: Report, b: Report) -> int:
    """Print both machines' ratios. 0 where every result holds, 1 where one does not.

    ValueError where the two have nothing in common.
    """
    found = comparisons(a, b)
    if not found:
        raise ValueError("different devices, and no engine and batch size in common: no ratio can be compared")
    base = engines_of(a.results)[0]
    print(f"{a.machine.device} and {b.machine.device}: absolute times are not compared, decode speed over {base} is")
    for what, x, y in (
        ("model", models_of(a), models_of(b)),
        ("dtype", [a.dtype], [b.dtype]),
        ("prompt", prompts_of(a.results), prompts_of(b.results)),
    ):
        if x != y:
            print(f"note: {what} {', '.join(map(str, x))} there, {', '.join(map(str, y))} here")
    print(f"{'':34} {'there':>6}  {'here':>6}")
    for there, here in found:
        same = there.verdict == here.verdict
        told = "holds here" if same else f"does not hold here: {there.verdict} there, {here.verdict} here"
        ratios = f"{significant(there.ratio):>6}  {significant(here.ratio):>6}"
        print(f"B={there.case.batch:<4} {there.case.engine:28} {ratios}  {told}")
    hold = sum(there.verdict == here.verdict for there, here in found)
    print(f"{hold} of {len(found)} results hold here")
    return 0 if hold == len(found) else 1
