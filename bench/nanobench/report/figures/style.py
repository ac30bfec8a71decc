"""How every figure looks: one palette, one look an engine, and files that are the same each time they are drawn.

A figure is one SVG on a light card of its own: it reads the same on a white and on a black page, whichever of system,
site or notebook decides about the page. Lines differ by marker as well as by colour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from nanobench.core.records import Report, ResultsFile
from nanobench.report.figures import words
from nanobench.report.values import engines_of, model_label, prompts_of, twins_of
from nanobench.systems import OTHERS, UNFUSED
from nanoinfer.config import ENGINES

WIDTH = 8.0  # inches; shown 800 pixels wide, 11 points are as large as the text around them


# Every colour of text has a contrast of 4.5 or more on the ground, every line 3 or more.
GROUND, TEXT, MUTED, GRID = "#f6f8fa", "#1f2328", "#59636e", "#d8dee4"
ACCENT = "#c2410c"
GREYS = ("#59636e", "#818b98", "#3d444d", "#6e7781")
RUNGS = dict(  # a colour each; peers are grey and dashed
    zip(ENGINES, ("#59636e", "#1d4ed8", "#0f766e", "#7e22ce", ACCENT, "#be185d", "#3f6212"), strict=True)
)
PEERS = ("#1d4ed8", "#0f766e", "#7e22ce", "#a16207", "#be185d", "#0369a1", "#4d7c0f")
SETTINGS: dict[str, Any] = {
    "savefig.facecolor": "none", "axes.facecolor": GROUND, "text.color": TEXT, "axes.labelcolor": TEXT,
    "axes.titlecolor": TEXT, "axes.edgecolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": TEXT, "ytick.labelcolor": TEXT, "grid.color": GRID, "grid.linewidth": 0.8, "axes.grid": True,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left",
    "font.family": "DejaVu Sans", "font.size": 11, "axes.titlesize": 11.5, "axes.labelsize": 11,
    "xtick.labelsize": 10.5, "ytick.labelsize": 10.5, "legend.fontsize": 10.5, "legend.frameon": False,
    "svg.hashsalt": "nanoinfer", "svg.fonttype": "path", "hatch.color": MUTED, "hatch.linewidth": 0.8,
}  # fmt: skip

MARKERS = dict(zip(ENGINES, "os^DvH8", strict=True))
UNFUSED_MARKERS = {"dense-graph-unfused": "<", "paged-graph-unfused": ">"}
OTHER_MARKERS = ("P", "X", "*", "p", "h", "d", "1", "2")
OTHER_SIZES = {"*": 11.0, "P": 8.0, "X": 8.0}


@dataclass(frozen=True)
class Drawing:
    """One figure: its file's name (with the folder, if it has one of its own), what it shows in words, the same numbers
    as a table, and how it is drawn."""

    name: str
    title: str
    alt: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    draw: Callable[[], Figure]
    notes: tuple[str, ...] = field(default=())


def newest_of(names: Sequence[str], wanted: str | None = None) -> str | None:
    """The engine drawn wide: the one that is wanted, or the last rung that was measured."""
    ours = [name for name in names if name in ENGINES]
    return wanted if wanted in ours else (ours[-1] if ours else None)


def look(name: str, newest: str | None) -> dict[str, Any]:
    """Arguments of `plot` for one engine, the same in every figure: a colour a rung, peers grey and dashed.

    The chapter's own engine is drawn wide. One without its fused kernels has the colour of the one with them, dotted.
    """
    if name in UNFUSED:
        like = look(name.removesuffix("-unfused"), newest)
        return {**like, "linewidth": 1.4, "linestyle": ":", "marker": UNFUSED_MARKERS[name], "zorder": 4}
    if name in ENGINES:
        wide = {"linewidth": 2.8, "zorder": 5} if name == newest else {"linewidth": 1.6, "zorder": 4}
        return {"color": RUNGS[name], "markersize": 6.5, "marker": MARKERS[name], **wide}
    others = [other for other in OTHERS if other not in UNFUSED]
    at = others.index(name) if name in others else len(others)
    marker = OTHER_MARKERS[at % len(OTHER_MARKERS)]
    return {
        "color": GREYS[at % len(GREYS)], "linewidth": 1.2, "linestyle": (0, (5, 2)), "marker": marker,
        "markersize": OTHER_SIZES.get(marker, 7.0), "markeredgewidth": 0.5,
    }  # fmt: skip


def looks(names: Sequence[str], newest: str | None) -> dict[str, dict[str, Any]]:
    """`look` for each engine of a figure."""
    return {name: look(name, newest_of(names, newest)) for name in names}


def sheet(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure so many inches high, and its panels, an array of rows and columns."""
    figure = Figure(figsize=(WIDTH, height), layout=None)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def finish(
    figure: Figure, note: str, margins: dict[str, float], keys: Sequence[Any] = (), at: float = 0.06,
    columns: int | None = None, spacing: float | None = None, high: float = 0.995,
) -> Figure:  # fmt: skip
    """The legend above, the margins, and where the numbers come from."""
    if keys:
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (at, high)}
        figure.legend(handles=keys, ncol=columns or len(keys), columnspacing=spacing, **place)
    figure.subplots_adjust(**{"right": 0.985, **margins})
    corner(figure, note)
    return figure


def keys_of(ax: Axes) -> list[Any]:
    """The lines of a panel that have a name."""
    return list(ax.get_legend_handles_labels()[0])


def written_out(ax: Axes, values: Sequence[int]) -> None:
    """A logarithmic axis with every one of these values written out."""
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(list(values)))
    ax.xaxis.set_major_formatter(FixedFormatter([str(value) for value in values]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(values[0] / 1.3, values[-1] * 1.3)  # also where the largest have no numbers


def corner(figure: Figure, text: str) -> None:
    """Where the numbers come from, in the lower right corner."""
    above = 0.07 / figure.get_figheight()  # clear of the card's edge
    figure.text(0.985, above, text, ha="right", va="bottom", fontsize=8.5, color=MUTED, linespacing=1.35)


def counted(tokens: int) -> str:
    """`1 token`, `2 tokens`."""
    return f"{tokens} token{'' if tokens == 1 else 's'}"


def origin(file: ResultsFile) -> str:
    """Device, version, date and commit of what was measured."""
    return f"{file.machine.device}, torch {file.machine.torch}, {file.date}, commit {file.commit[:8]}"


def provenance(report: Report, model: str) -> str:
    """Model, dtype and lengths; device, versions, date and commit; on a CPU, the engines that run the same code."""
    results = report.find(model=model)
    prompts = prompts_of(results)
    lengths = counted(prompts[0]) if len(prompts) == 1 else f"{prompts[0]} to {counted(prompts[-1])}"
    new = sorted({r.case.new_tokens for r in results})
    tokens = " or ".join(map(str, new))
    # Of each result itself: a run that went on with other settings has cases of fewer repeats than the report says.
    repeats = sorted({len(r.generate_s.samples) for r in results if r.generate_s is not None}) or [report.repeats]
    runs = f"{repeats[0]} to {repeats[-1]}" if len(repeats) > 1 else f"{repeats[0]}"
    cases = f"prompts of {lengths}, {tokens} new ones, greedy"
    what = f"{model_label(model)}, {report.dtype}, {cases}, medians of {runs} runs"
    twins = {name: ", ".join(twins_of(name)) for name in engines_of(results) if report.machine.kind == "cpu"}
    same = "; ".join(f"{others} run{'s' * (',' not in others)} as {name}" for name, others in twins.items() if others)
    return f"{what}\n{origin(report)}" + (f"\na CPU records no steps: {same}" if same else "")


def gaps(report: Report, model: str) -> tuple[str, ...]:
    """The cases that have no numbers, by name and reason."""
    found = []
    for engine in engines_of(report.find(model=model)):
        for r in report.find(model=model, engine=engine):
            if r.status != "ok":
                prompt = f", prompt {r.case.prompt_tokens}" if len(prompts_of(report.results)) > 1 else ""
                found.append(f"{engine}, B = {r.case.batch}{prompt}: {r.status} ({r.reason})")
    return tuple(found)


def write(drawing: Drawing, folder: Path) -> tuple[Path, Path]:
    """NAME.svg, and NAME.md with the words and the table. Returns both paths."""
    svg, page = folder / f"{drawing.name}.svg", folder / f"{drawing.name}.md"
    svg.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(SETTINGS):  # type: ignore[arg-type]
        figure = drawing.draw()
        card(figure)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Title": drawing.title})
    # Trailing blanks are matplotlib's; without them the files pass `git diff --check`.
    lines = text.getvalue().splitlines()
    svg.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")
    page.write_text(page_of(drawing), encoding="utf-8")
    return svg, page


def card(figure: Figure) -> None:
    """The ground behind everything: a rectangle with round corners and a thin edge."""
    width, height = figure.get_size_inches()
    figure.add_artist(
        FancyBboxPatch(
            (0.01, 0.01), width - 0.02, height - 0.02, boxstyle="round,pad=0,rounding_size=0.1", facecolor=GROUND,
            edgecolor=GRID, zorder=-1, transform=figure.dpi_scale_trans,
        )
    )  # fmt: skip


def page_of(drawing: Drawing) -> str:
    """NAME.md: the figure, its alt text, and its numbers as a table."""
    numbers = words.table(drawing.header, drawing.rows)
    return words.page(drawing.title, drawing.name.rpartition("/")[2], drawing.alt, numbers, drawing.notes)
