"""The book's claims on another machine: ratios over the first engine, side by side.

Absolute times of two devices are not compared. A claim is that an engine is faster than the first one, slower, or even
(its interval reaches into 3% around 1); it holds where both machines say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanobench.core.records import Report, Result
from nanobench.report.compare import Verdict, common, interval, verdict
from nanobench.report.values import engines_of, models_of, prompts_of, significant


@dataclass(frozen=True)
class Claim:
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


def claims(a: Report, b: Report) -> list[Claim]:
    """Each engine over the first, at each batch that both have: `there` in a, `here` in b."""
    base = engines_of(a.results)[0]
    pairs = common(a, b) or _alike(a, b)
    found = []
    for first, second in pairs:
        if first.case.engine == base:
            continue
        bases = [_base(pairs, side, result, base) for side, result in enumerate((first, second))]
        if bases[0] is None or bases[1] is None:
            continue
        verdicts, values = [], []
        for result, below in zip((first, second), bases, strict=True):
            assert below is not None
            assert result.tokens_per_s
            assert below.tokens_per_s
            verdicts.append(verdict(*interval(result, below, "tok/s")))
            values.append(result.tokens_per_s / below.tokens_per_s)
        case = first.case
        found.append(Claim(case.engine, case.batch, values[1], values[0], (verdicts[0], verdicts[1])))
    return found


def _base(pairs: Sequence[tuple[Result, Result]], side: int, result: Result, base: str) -> Result | None:
    """The first engine's result at the same model, batch and prompt, in the same report."""
    want = (result.case.model, result.case.batch, result.case.prompt_tokens)
    for pair in pairs:
        case = pair[side].case
        if case.engine == base and (case.model, case.batch, case.prompt_tokens) == want:
            return pair[side]
    return None


def _alike(a: Report, b: Report) -> list[tuple[Result, Result]]:
    """Cases of the same engine and batch, where each report has one model and one prompt length."""
    if any(len(models_of(r)) > 1 or len(prompts_of(r.results)) > 1 for r in (a, b)):
        return []
    of = {(r.case.engine, r.case.batch): r for r in b.results if r.status == "ok"}
    keys = [(r, (r.case.engine, r.case.batch)) for r in a.results if r.status == "ok"]
    return [(r, of[key]) for r, key in keys if key in of]


def compare(a: Report, b: Report) -> int:
    """Print both machines' ratios. 0 where every claim holds, 1 where one does not.

    ValueError where the two have nothing in common.
    """
    found = claims(a, b)
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
    for claim in found:
        print(claim)
    hold = sum(claim.holds for claim in found)
    print(f"{hold} of {len(found)} claims hold here")
    return 0 if hold == len(found) else 1
