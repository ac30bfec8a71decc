"""The share of the bandwidth limit by engine and batch size."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from nanobench.core.records import Report, Result
from nanobench.report.figures.style import TEXT, Drawing, corner, gaps, provenance, sheet
from nanobench.report.figures.throughput import batch_axis, lines, margins, name_lines, plain_log, point
from nanobench.report.values import batches_of, engine_label, engines_of, model_label, share


def bandwidth_share(report: Report, stem: str, model: str, newest: str | None = None) -> Drawing | None:
    """Share of the bandwidth limit by engine and batch; None where the weights stay in the cache."""
    results = [r for r in report.find(model=model) if r.floor_share is not None or r.status != "ok"]
    if not any(r.floor_share for r in results):
        return None
    batches, kind = batches_of(results), report.machine.kind

    def draw() -> Figure:
        figure, ((ax,),) = sheet(4.2)
        lines(ax, results, lambda r: point(None if r.floor_share is None else 100 * r.floor_share), newest, kind)
        ax.axhline(100, color=TEXT, linewidth=1.4, label="_limit")
        ax.annotate(
            "the bandwidth limit", (batches[0], 100), xytext=(0, -14), textcoords="offset points", fontsize=10.5
        )
        ax.set_yscale("log")
        ax.set_ylim(top=130)
        ax.set_ylabel("share of the limit, %")
        plain_log(ax)
        batch_axis(ax, batches)
        note = provenance(report, model)
        margins(figure, note)
        name_lines(ax)
        corner(figure, note)
        return figure

    best = max((r for r in results if r.floor_share), key=lambda r: r.floor_share or 0)
    alt = (
        f"Share of the bandwidth limit against batch size, {model_label(model)} on {report.machine.device}. "
        f"The highest is {engine_label(best.case.engine)} at batch {best.case.batch} "
        f"with {share(best.floor_share or 0)}; at batch {batches[0]}: {_ends(results, batches[0])}."
    )
    rows = [_share_row(engine, results, batches) for engine in engines_of(results)]
    title = f"Share of the bandwidth limit, {model_label(model)} on {report.machine.device}"
    header = ("engine", *(f"B = {batch}" for batch in batches))
    return Drawing(f"{stem}-bandwidth", title, alt, header, tuple(rows), draw, gaps(report, model))


def _share_row(engine: str, results: Sequence[Result], batches: Sequence[int]) -> tuple[str, ...]:
    of = {r.case.batch: r for r in results if r.case.engine == engine}
    cells = []
    for batch in batches:
        r = of.get(batch)
        cells.append("–" if r is None else share(r.floor_share) if r.floor_share is not None else r.status)
    return (engine, *cells)


def _ends(results: Sequence[Result], batch: int) -> str:
    at = [r for r in results if r.case.batch == batch and r.floor_share is not None]
    return "; ".join(f"{engine_label(r.case.engine)} {share(r.floor_share or 0)}" for r in at)
