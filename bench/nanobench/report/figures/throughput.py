"""Throughput against batch size, with time to first token and memory below."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from nanobench.core.records import Report, Result, Spread
from nanobench.report.figures.style import (
    GROUND,
    MUTED,
    RUNGS,
    TEXT,
    Drawing,
    corner,
    gaps,
    looks,
    newest_of,
    provenance,
    sheet,
    written_out,
)
from nanobench.report.intervals import claimed
from nanobench.report.values import (
    batches_of,
    case_bytes,
    decode,
    engine_label,
    engines_of,
    limit_tokens_per_s,
    model_label,
    rate,
    seconds,
    share,
    significant,
    size,
)
from nanobench.systems import UNFUSED
from nanoinfer.config import ENGINES

Measure = Callable[[Result], Spread | None]
NAMES = 0.268  # of a figure's width: beside its lines, for their names
LINE = 0.165  # inches that a name takes


def throughput(report: Report, stem: str, model: str, newest: str | None = None, mine: Report | None = None) -> Drawing:
    """Decode throughput, TTFT and memory of one model, over the batch size. mine: comparable cases, laid over."""
    results = report.find(model=model)
    title = f"Throughput against batch size, {model_label(model)} on {report.machine.device}"
    yours = f"hollow markers, dotted: your machine ({mine.machine.device}, {mine.dtype})" if mine else ""
    alt = _alt(report, model) + (f" With {yours}." if mine else "")

    def draw() -> Figure:
        panels: list[tuple[str, Measure]] = [("tokens/s, decode", decode), ("TTFT, ms", _ttft_ms)]
        if any(case_bytes(r) for r in results):
            panels.append(("memory, GB", _gigabytes))
        heights = [3.6, 1.6, 1.6][: len(panels)]
        height = sum(heights) + 1.2
        figure, axes = sheet(height, len(panels), sharex=True, gridspec_kw={"height_ratios": heights})
        for ax, (label, measure) in zip(axes[:, 0], panels, strict=True):
            lines(ax, results, measure, newest, report.machine.kind)
            if mine is not None:
                wide = newest_of(engines_of(results), newest)
                lines(ax, mine.find(model=model), measure, wide, mine.machine.kind, hollow=True)
            ax.set_yscale("log")
            ax.set_ylabel(label)
            plain_log(ax)
        _limit(axes[0, 0], results)
        plain_log(axes[0, 0])
        figure.align_ylabels(axes[:, 0])
        written_out(axes[-1, 0], batches_of([*results, *(mine.find(model=model) if mine else [])]))
        axes[-1, 0].set_xlabel("batch size B")
        note = provenance(report, model)
        if len(panels) > 2:
            note = f"memory: beside the weights; caches, activations, and what is held for graphs\n{note}"
        if mine is not None:
            note = f"{yours}\n{note}"
        seen = _seen(results, newest)
        top, bottom = 1 - (0.34 if seen else 0.14) / height, (0.64 + 0.17 * len(note.splitlines())) / height
        figure.subplots_adjust(left=0.14, right=0.985 - NAMES, top=top, bottom=bottom, hspace=0.12)
        name_lines(axes[0, 0])
        figure.text(0.01, 1 - 0.2 / height, seen, fontsize=11.5, color=TEXT, va="center")
        corner(figure, note)
        return figure

    header = ("engine", "B", "tok/s", "10–90%", "TTFT", "memory of the case", "share of the limit")
    return Drawing(f"{stem}-throughput", title, alt, header, tuple(_rows(results)), draw, gaps(report, model))


def lines(
    ax: Axes, results: Sequence[Result], measure: Measure, newest: str | None, kind: str, hollow: bool = False
) -> None:
    """One line an engine; a case without a number leaves a gap, and the 10-90% range is a bar.

    hollow: of the reader's own results, laid over in the same colours and with the same markers, dotted.
    """
    names, batches = engines_of(results), batches_of(results)
    styles = looks(names, newest)
    for name in names:
        of = {r.case.batch: r for r in results if r.case.engine == name}
        # Batches that this engine was never asked for are no gap; those that it failed at are.
        found = [(batch, measure(of[batch])) for batch in batches if batch in of]
        x = [batch for batch, _ in found]
        y = [spread.median if spread else math.nan for _, spread in found]
        if all(map(math.isnan, y)):
            continue
        color = styles[name]["color"]
        look: dict[str, Any] = {"label": engine_label(name, kind), "markeredgecolor": GROUND}
        if hollow:
            look = {"label": "_mine", "markeredgecolor": color, "linestyle": ":", "markerfacecolor": GROUND}
        ax.plot(x, y, **styles[name] | look)
        for batch, spread in found if not hollow else ():
            if spread:
                bar = {"color": color, "linewidth": 1, "zorder": 3, "label": "_spread"}
                ax.plot([batch, batch], [spread.p10, spread.p90], **bar)


def plain_log(ax: Axes) -> None:
    """Numbers on a logarithmic axis as people write them."""
    low, high = ax.get_ylim()
    steps = (1.0, 2.0, 5.0) if high / low < 200 else (1.0,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10**power for power in powers for step in steps if low <= step * 10**power <= high]
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    ax.set_ylim(low, high)


def _plain(value: float) -> str:
    """100,000, but 2 million as `2 M`: longer labels would push the axis' name out of the figure."""
    return f"{value / 1e6:,.10g} M" if value >= 1e6 else f"{value:,.10g}"


def _limit(ax: Axes, results: Sequence[Result]) -> None:
    """The bandwidth limit as a line with its name on it."""
    points = [(b, limit_tokens_per_s([r for r in results if r.case.batch == b])) for b in batches_of(results)]
    known = [(batch, limit) for batch, limit in points if limit]
    if not known:
        return
    ax.plot(*zip(*known, strict=True), color=TEXT, linewidth=1.4, zorder=2, label="_limit")
    beside = known[len(known) // 2]  # the line rises: left of a point and above it, the label is clear of it
    ax.annotate("bandwidth limit", beside, xytext=(-9, 3), textcoords="offset points", ha="right", fontsize=10.5)
    low, high = ax.get_ylim()
    ax.set_ylim(low, max(high, known[-1][1] * 1.6))


def _seen(results: Sequence[Result], newest: str | None) -> str:
    """The figure in a sentence: the engine that is drawn wide beside the fastest peer; nothing where there is none.

    Where their 10-90% ranges overlap at each batch size, the sentence names only what is drawn.
    """
    best = newest_of(engines_of(results), newest) or ""
    of = {(r.case.engine, r.case.batch): r for r in results if decode(r)}
    peers = [r for r in of.values() if r.case.engine not in {*ENGINES, *UNFUSED} and (best, r.case.batch) in of]
    if not peers:
        return ""
    few = min(r.case.batch for r in peers)
    peer = max((r for r in peers if r.case.batch == few), key=lambda r: r.tokens_per_s or 0).case.engine
    many = max(r.case.batch for r in peers if r.case.engine == peer)
    times = {}
    for batch in (few, many):
        top, bottom = decode(of[best, batch]), decode(of[peer, batch])
        assert top is not None
        assert bottom is not None
        with suppress(ValueError):
            times[batch] = claimed(top, bottom)
    if not times:
        return "Decode throughput against batch size"
    (first, ratio), *later = times.items()
    more = "".join(f", {ratio} at B = {batch}" for batch, ratio in later)
    return f"{engine_label(best)}: {ratio} {engine_label(peer)} at B = {first}{more}"


def name_lines(ax: Axes) -> None:
    """Each line's name beside its last point, and a thin line to it where names would stand on each other."""
    ends = [(line, *_last(line)) for line in ax.get_lines() if not str(line.get_label()).startswith("_")]
    place = ax.transData + ax.transAxes.inverted()
    ends = sorted(((line, *place.transform((x, y))) for line, x, y in ends), key=lambda end: end[2])
    gap = LINE / (ax.get_position().height * ax.figure.get_figheight())  # type: ignore[union-attr]
    at = [y for *_, y in ends]
    for _ in range(200):  # neighbours push each other away until all have room
        for low, high in pairwise(range(len(at))):
            push = (gap - (at[high] - at[low])) / 2
            if push > 0:
                at[low], at[high] = at[low] - push, at[high] + push
        at = [max(at[0], 0.0), *at[1:]] if at else at
    for n in reversed(range(len(at))):  # none above the panel
        at[n] = min(at[n], 1 - gap * (len(at) - 1 - n))
    for (line, x, y), height in zip(ends, at, strict=True):
        look: dict[str, Any] = {"transform": ax.transAxes, "clip_on": False, "color": line.get_color()}
        ax.plot([x + 0.012, 1.012, 1.03], [y, y, height], linewidth=0.8, label="_name", **look)
        color = line.get_color() if line.get_color() in RUNGS.values() else MUTED
        ax.text(1.036, height, str(line.get_label()), transform=ax.transAxes, va="center", fontsize=9.5, color=color)


def _last(line: Line2D) -> tuple[float, float]:
    """The last point that has a number."""
    points = zip(*(np.asarray(each, float) for each in line.get_data()), strict=True)
    return [(x, y) for x, y in points if not math.isnan(y)][-1]


def _ttft_ms(result: Result) -> Spread | None:
    t = result.ttft_s
    return t and Spread(median=t.median * 1e3, p10=t.p10 * 1e3, p90=t.p90 * 1e3, samples=())


def _gigabytes(result: Result) -> Spread | None:
    used = (case_bytes(result) or 0) / 1e9
    return Spread(median=used, p10=used, p90=used, samples=()) if used else None


def _rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for engine in engines_of(results):
        for r in sorted((r for r in results if r.case.engine == engine), key=lambda r: r.case.batch):
            spread, used = decode(r), case_bytes(r)
            if spread is None or r.ttft_s is None:
                rows.append((engine, str(r.case.batch), r.status, "–", "–", "–", "–"))
                continue
            between = f"{significant(spread.p10)}–{significant(spread.p90)}"
            memory = size(used) if used is not None else "–"
            of_limit = share(r.floor_share) if r.floor_share is not None else "in cache"
            numbers = (rate(spread.median).removesuffix(" tok/s"), between, seconds(r.ttft_s.median), memory, of_limit)
            rows.append((engine, str(r.case.batch), *numbers))
    return rows


def _alt(report: Report, model: str) -> str:
    """What the figure shows, in words, from the same numbers."""
    results = [r for r in report.find(model=model) if r.tokens_per_s]
    batches = batches_of(results)
    text = (
        f"Decode throughput against batch size, {model_label(model)} on {report.machine.device}, greedy, both axes "
        "logarithmic."
    )
    for batch in dict.fromkeys((batches[0], batches[-1])):
        at = sorted((r for r in results if r.case.batch == batch), key=lambda r: -(r.tokens_per_s or 0))
        named = "; ".join(f"{engine_label(r.case.engine)} {rate(r.tokens_per_s or 0)}" for r in at)
        limit = limit_tokens_per_s(at)
        reached = (
            f" The fastest is at {share((at[0].tokens_per_s or 0) / limit)} of the bandwidth limit." if limit else ""
        )
        text += f" At batch {batch}, fastest first: {named}.{reached}"
    return text
