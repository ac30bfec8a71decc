"""Results of two machines compared: each engine's decode speed over the first engine's, side by side.

Absolute times of two devices are not compared. On each machine an engine is faster than the first one, slower, or even
(its interval reaches into 3% around 1); a result holds where both machines say the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from nanobench.core.records import Report, Result
from nanobench.report.intervals import Verdict, common, interval, verdict
from nanobench.report.values import engines_of, models_of, prompts_of, significant


@dataclass(frozen=True)
class Comparison:
    """An engine against the first one, on both machines."""

    engine: str
    batch: int
    here: float
    there: float
    verdicts: tuple[Verdict, Verdict]

    @property
    def holds(self) -> bool:
        """Whether the same engine is the faster one on both."""
        return self.verdicts[0] == self.verdicts[1]

    def __str__(self) -> str:
        there, here = self.verdicts
        outcome = "holds here" if self.holds else f"does not hold here: {there} there, {here} here"
        ratios = f"{significant(self.there):>6}  {significant(self.here):>6}"
        return f"B={self.batch:<4} {self.engine:28} {ratios}  {outcome}"


def comparisons(a: Report, b: Report) -> list[Comparison]:
    """Each engine over the first, at each batch that both have: `there` in a, `here` in b."""
    base = engines_of(a.results)[0]
    pairs = common(a, b) or _alike(a, b)
    bases = {_shape(first): (first, second) for first, second in pairs if first.case.engine == base}
    found = []
    for pair in pairs:
        case = pair[0].case
        if case.engine != base and (below := bases.get(_shape(pair[0]))) is not None:
            (there, verdict_there), (here, verdict_here) = map(_ratio, pair, below)
            found.append(Comparison(case.engine, case.batch, here, there, (verdict_there, verdict_here)))
    return found


def _shape(result: Result) -> tuple[str, int, int]:
    return result.case.model, result.case.batch, result.case.prompt_tokens


def _ratio(top: Result, bottom: Result) -> tuple[float, Verdict]:
    """Decode speed of one case over another's."""
    assert top.tokens_per_s
    assert bottom.tokens_per_s
    return top.tokens_per_s / bottom.tokens_per_s, verdict(*interval(top, bottom, "tok/s"))


def _alike(a: Report, b: Report) -> list[tuple[Result, Result]]:
    """Pairs of the same engine and batch, where each report has one model and one prompt length."""
    if any(len(models_of(r)) > 1 or len(prompts_of(r.results)) > 1 for r in (a, b)):
        return []
    of = {(r.case.engine, r.case.batch): r for r in b.results if r.status == "ok"}
    keys = [(r, (r.case.engine, r.case.batch)) for r in a.results if r.status == "ok"]
    return [(r, of[key]) for r, key in keys if key in of]


def compare(a: Report, b: Report) -> int:
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
    for comparison in found:
        print(comparison)
    hold = sum(comparison.holds for comparison in found)
    print(f"{hold} of {len(found)} results hold here")
    return 0 if hold == len(found) else 1
