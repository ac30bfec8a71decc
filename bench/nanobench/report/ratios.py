"""Engines of one results file compared: each over the one that is named, with intervals."""

from __future__ import annotations

from collections.abc import Iterator

from nanobench.core.records import Report
from nanobench.report.intervals import interval, verdict
from nanobench.report.values import batches_of, engine_label, engines_of, models_of, prompts_of, significant

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
