"""The time of a token against the context's length."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from nanobench.core.records import Report, Result
from nanobench.report.figures.style import (
    GROUND,
    Drawing,
    counted,
    finish,
    gaps,
    keys_of,
    looks,
    provenance,
    sheet,
)
from nanobench.report.values import (
    batches_of,
    engine_label,
    engines_of,
    factor,
    model_label,
    prompts_of,
    seconds,
    significant,
    step_seconds,
)

CONTEXT_BATCHES = (1, 8, 64)


def context(report: Report, stem: str, model: str, newest: str | None = None) -> Drawing | None:
    """Time of one decode step against the tokens before it, one panel a batch size.

    Both engines by the same formula: (generate - TTFT) / steps, so that what a call costs once is in neither line.
    """
    results = [r for r in report.find(model=model) if r.case.batch in CONTEXT_BATCHES]
    batches = [b for b in batches_of(results) if any(r.tokens_per_s for r in results if r.case.batch == b)]
    names = engines_of(results)
    if not batches:
        return None

    def draw() -> Figure:
        figure, (axes,) = sheet(4.4, 1, len(batches))
        styles = looks(names, newest)
        for ax, batch in zip(axes, batches, strict=True):
            for name in names:
                points = _line([r for r in results if r.case.batch == batch and r.case.engine == name])
                if points:
                    x, y, low, high = zip(*points, strict=True)
                    ax.fill_between(x, low, high, color=styles[name]["color"], alpha=0.2, linewidth=0)
                    ax.plot(x, y, label=engine_label(name, report.machine.kind), markeredgecolor=GROUND, **styles[name])
            ax.set_title(f"B = {batch}")
            ax.set_xlabel("tokens of context")
            ax.set_ylim(bottom=0)
            ax.set_xlim(left=0)
        axes[0].set_ylabel("ms a decode step")
        note = provenance(report, model) + "\nband: 10–90% of the runs"
        more = 0.17 * (len(note.splitlines()) - 3) / 4.4
        margins = {"left": 0.08, "top": 0.83, "bottom": 0.26 + more, "wspace": 0.2}
        return finish(figure, note, margins, keys_of(axes[0]))

    rows = []
    for r in sorted(results, key=lambda r: (names.index(r.case.engine), r.case.batch, r.case.prompt_tokens)):
        step = step_seconds(r)
        numbers = (seconds(step.median), seconds(r.ttft_s.median)) if step and r.ttft_s else (r.status, "–")
        rows.append((r.case.engine, str(r.case.batch), str(r.case.prompt_tokens), *numbers))
    title = f"Time of a decode step against context, {model_label(model)} on {report.machine.device}"
    header = ("engine", "B", "context", "a decode step", "TTFT of a prompt so long")
    alt = title + ", time from zero." + _context_alt(results, batches, names)
    name = stem if "context" in stem else f"{stem}-context"
    return Drawing(name, title, alt, header, tuple(rows), draw, gaps(report, model))


def _line(results: Sequence[Result]) -> list[tuple[float, float, float, float]]:
    """Context, milliseconds, and their 10-90% range; not a number where the case has none."""
    points = []
    for r in sorted(results, key=lambda r: r.case.prompt_tokens):
        step = step_seconds(r)
        middle = r.case.prompt_tokens + (r.case.new_tokens - 1) / 2  # mean context of the steps that were timed
        values = (step.median, step.p10, step.p90) if step else (math.nan,) * 3
        points.append((middle, *(1e3 * value for value in values)))
    return points  # type: ignore[return-value]


def _context_alt(results: Sequence[Result], batches: Sequence[int], names: Sequence[str]) -> str:
    text = ""
    for batch in batches:
        for name in names:
            of = [r for r in results if r.case.batch == batch and r.case.engine == name and r.tokens_per_s]
            if len(of) < 2:
                continue
            first, last = prompts_of(of)[0], prompts_of(of)[-1]
            ends = [step_seconds(r) for p in (first, last) for r in of if r.case.prompt_tokens == p]
            a, b = (spread.median for spread in ends if spread)
            text += (
                f" At batch {batch}, {name} takes {significant(1e3 * a)} ms at a context of {counted(first)} and "
                f"{significant(1e3 * b)} ms at one of {last} ({factor(b / a)})."
            )
    return text
