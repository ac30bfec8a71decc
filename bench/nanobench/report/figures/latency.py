"""Inter-token latency as the distribution of single steps; and the time of a token against the context's length."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from nanobench.core.records import Report, Result
from nanobench.report.figures.style import (
    GROUND,
    MUTED,
    TEXT,
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

ITL_BATCHES = (1, 8, 64, 256)
CONTEXT_BATCHES = (1, 8, 64)


def itl(report: Report, stem: str, model: str, newest: str | None = None) -> Drawing | None:
    """p10 to p90 as a bar, p50 and p99 as marks, by engine, at some batch sizes."""
    quantiles = {
        r.case: (r.itl_s.p10, r.itl_s.median, r.itl_s.p90, r.itl_p99_s)
        for r in report.find(model=model) if r.itl_s and r.itl_p99_s
    }  # fmt: skip
    results = [r for r in report.find(model=model) if r.case in quantiles]
    names = engines_of(results)
    batches = [b for b in batches_of(results) if b in ITL_BATCHES] or batches_of(results)[:4]
    if not results:
        return None

    def draw() -> Figure:
        rows = -(-len(batches) // 2)
        note = provenance(report, model) + "\nsingle steps, in one run of their own"
        more = 0.17 * (len(note.splitlines()) - 3)  # inches, where the note is longer than usual
        height = rows * (0.34 * len(names) + 0.75) + 1.35 + more
        figure, axes = sheet(height, rows, min(2, len(batches)), sharey=True)
        styles = looks(names, newest)
        for ax, batch in zip(axes.flat, batches, strict=False):
            for r in (r for r in results if r.case.batch == batch):
                y, color = names.index(r.case.engine), styles[r.case.engine]["color"]
                p10, p50, p90, p99 = (1e3 * t for t in quantiles[r.case])
                ax.plot([p90, p99], [y, y], color=color, linewidth=1.4)
                ax.barh(y, p90 - p10, left=p10, height=0.5, color=color, linewidth=0)
                ax.plot(p50, y, "|", color=TEXT, markersize=15, markeredgewidth=2)
                ax.plot(p99, y, "D", color=color, markersize=4.5, clip_on=False)
            for r in report.find(model=model, batch=batch):
                if r.status != "ok" and r.case.engine in names:
                    ax.text(0, names.index(r.case.engine), f"  {r.status}", va="center", color=MUTED)
            ax.set_title(f"B = {batch}")
            ax.set_xlim(left=0)
            ax.xaxis.set_major_locator(MaxNLocator(4))
            ax.grid(axis="y", visible=False)
            ax.set_yticks(range(len(names)), [engine_label(name, report.machine.kind) for name in names])
            ax.set_ylim(len(names) - 0.4, -0.6)
        for ax in axes.flat[len(batches) :]:
            ax.set_visible(False)
        for ax in axes.flat[max(0, len(batches) - axes.shape[1]) : len(batches)]:
            ax.set_xlabel("ms between two tokens of a row")
        marks = [
            Patch(color=MUTED, label="10% to 90% of the steps"),
            Line2D([], [], color=TEXT, marker="|", linestyle="", markersize=13, markeredgewidth=2, label="median"),
            Line2D([], [], color=MUTED, marker="D", markersize=4.5, label="up to 99%"),
        ]
        margins = {"left": 0.315, "top": 1 - 0.75 / height, "bottom": (1.12 + more) / height, "wspace": 0.12}
        margins["hspace"] = 0.75 / (0.34 * len(names))  # of a panel's height: what an axis and a title need
        return finish(figure, note, margins, marks, at=0.02)

    rows = [
        (name, str(case.batch), *map(seconds, times))
        for name in names for case, times in quantiles.items() if case.engine == name
    ]  # fmt: skip
    title = f"Inter-token latency, {model_label(model)} on {report.machine.device}"
    header = ("engine", "B", "p10", "p50", "p90", "p99")
    alt = f"{title}: bars from the 10% to the 90% quantile of single steps, a mark at the median, a line to p99."
    for batch in batches:
        at = [(case.engine, times) for case, times in quantiles.items() if case.batch == batch]
        medians = "; ".join(f"{engine_label(engine)} {seconds(p50)}" for engine, (_, p50, *_) in at)
        alt += f" Medians at batch {batch}: {medians}."
    return Drawing(f"{stem}-itl", title, alt, header, tuple(rows), draw, gaps(report, model))


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
