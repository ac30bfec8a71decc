"""How every figure looks: two themes, one look an engine, and files that are the same each time they are drawn.

A figure comes as a light and a dark SVG, each with its own background, because no grey is legible on white and on black
at once; and as a PNG for places that show no SVG. Lines differ by marker as well as by colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from nanobench.core.records import Report
from nanobench.report.figures import words
from nanobench.report.values import engines_of, model_label, prompts_of
from nanobench.systems import OTHERS, UNFUSED
from nanoinfer.llm import ENGINES

WIDTH = 8.0  # inches; shown 800 pixels wide, 11 points are as large as the text around them


@dataclass(frozen=True)
class Theme:
    """Colours of one background. Every colour of text has a contrast of 4.5 or more on it, every line 3 or more."""

    name: str
    background: str
    text: str
    muted: str
    grid: str
    accent: str  # the chapter's own engine
    greys: tuple[str, ...]  # the rungs before it
    peers: tuple[str, ...]


LIGHT = Theme(
    "light", "#ffffff", "#1f2328", "#59636e", "#d8dee4", "#c2410c", ("#59636e", "#818b98", "#3d444d", "#6e7781"),
    ("#1d4ed8", "#0f766e", "#7e22ce", "#a16207", "#be185d", "#0369a1", "#4d7c0f"),
)  # fmt: skip
DARK = Theme(
    "dark", "#0d1117", "#e6edf3", "#9198a1", "#30363d", "#fb923c", ("#9198a1", "#6e7681", "#c9d1d9", "#818b98"),
    ("#79b8ff", "#2dd4bf", "#d2a8ff", "#e3b341", "#f472b6", "#38bdf8", "#a3e635"),
)  # fmt: skip
THEMES = (LIGHT, DARK)

MARKERS = {"naive": "o", "dense": "s", "paged": "^", "dense-graph": "D", "paged-graph": "v"}
UNFUSED_MARKERS = {"dense-graph-unfused": "<", "paged-graph-unfused": ">"}
OTHER_MARKERS = ("P", "X", "*", "p", "h", "d", "8")
OTHER_SIZES = {"*": 11.0, "P": 8.0, "X": 8.0}


@dataclass(frozen=True)
class Drawing:
    """One figure: its file name, what it shows in words, the same numbers as a table, and how it is drawn."""

    name: str
    title: str
    alt: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    draw: Callable[[Theme], Figure]
    notes: tuple[str, ...] = field(default=())


def newest_of(names: Sequence[str], wanted: str | None = None) -> str | None:
    """The engine in colour: the one that is wanted, or the last rung that was measured."""
    ours = [name for name in names if name in ENGINES]
    return wanted if wanted in ours else (ours[-1] if ours else None)


def look(name: str, newest: str | None, theme: Theme) -> dict[str, Any]:
    """Arguments of `plot` for one engine, the same in every figure: earlier rungs grey, peers dashed.

    An engine without its fused kernels has the colour of the one with them, and is dotted.
    """
    if name in UNFUSED:
        like = look(name.removesuffix("-unfused"), newest, theme)
        return {**like, "linewidth": 1.4, "linestyle": ":", "marker": UNFUSED_MARKERS[name], "zorder": 4}
    if name in ENGINES:
        grey = theme.greys[ENGINES.index(name) % len(theme.greys)]
        colour = {"color": theme.accent, "linewidth": 2.4, "zorder": 5} if name == newest else {"color": grey}
        return {"linewidth": 1.6, "zorder": 4, "markersize": 6.5, "marker": MARKERS.get(name, "o"), **colour}
    others = [other for other in OTHERS if other not in UNFUSED]
    at = others.index(name) if name in others else len(others)
    marker = OTHER_MARKERS[at % len(OTHER_MARKERS)]
    return {
        "color": theme.peers[at % len(theme.peers)], "linewidth": 1.4, "linestyle": (0, (5, 2)), "marker": marker,
        "markersize": OTHER_SIZES.get(marker, 7.0), "markeredgewidth": 0.5,
    }  # fmt: skip


def looks(names: Sequence[str], newest: str | None, theme: Theme) -> dict[str, dict[str, Any]]:
    """`look` for each engine of a figure."""
    return {name: look(name, newest_of(names, newest), theme) for name in names}


@contextmanager
def themed(theme: Theme) -> Iterator[None]:
    """matplotlib's settings for one theme, and back."""
    settings = {
        "figure.facecolor": theme.background, "savefig.facecolor": theme.background, "axes.facecolor": theme.background,
        "text.color": theme.text, "axes.labelcolor": theme.text, "axes.titlecolor": theme.text,
        "axes.edgecolor": theme.muted, "xtick.color": theme.muted, "ytick.color": theme.muted,
        "xtick.labelcolor": theme.text, "ytick.labelcolor": theme.text, "grid.color": theme.grid,
        "grid.linewidth": 0.8, "axes.grid": True, "axes.axisbelow": True,
        "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left",
        "font.family": "DejaVu Sans", "font.size": 11, "axes.titlesize": 11.5, "axes.labelsize": 11,
        "xtick.labelsize": 10.5, "ytick.labelsize": 10.5, "legend.fontsize": 10.5, "legend.frameon": False,
        "svg.hashsalt": "nanoinfer", "svg.fonttype": "path", "hatch.color": theme.muted, "hatch.linewidth": 0.8,
    }  # fmt: skip
    with mpl.rc_context(settings):  # type: ignore[arg-type]
        yield


def corner(figure: Figure, theme: Theme, text: str) -> None:
    """Where the numbers come from, in the lower right corner."""
    figure.text(0.995, 0.006, text, ha="right", va="bottom", fontsize=8.5, color=theme.muted, linespacing=1.35)


def counted(tokens: int) -> str:
    """`1 token`, `2 tokens`."""
    return f"{tokens} token{'' if tokens == 1 else 's'}"


def provenance(report: Report, model: str) -> str:
    """Model, dtype and lengths; device, versions, date and commit."""
    results = report.find(model=model)
    prompts = prompts_of(results)
    lengths = counted(prompts[0]) if len(prompts) == 1 else f"{prompts[0]} to {counted(prompts[-1])}"
    new = sorted({r.case.new_tokens for r in results})
    tokens = " or ".join(map(str, new))
    # Of each result itself: a run that went on with other settings has cases of fewer repeats than the report says.
    repeats = sorted({len(r.generate_s.samples) for r in results if r.generate_s is not None}) or [report.repeats]
    runs = f"{repeats[0]} to {repeats[-1]}" if len(repeats) > 1 else f"{repeats[0]}"
    machine = report.machine
    return (
        f"{model_label(model)}, {report.dtype}, prompts of {lengths}, {tokens} new ones, "
        f"medians of {runs} runs\n{machine.device}, torch {machine.torch}, {report.date}, "
        f"commit {report.commit[:8]}"
    )


def gaps(report: Report, model: str) -> tuple[str, ...]:
    """The cases that have no numbers, by name and reason."""
    found = []
    for engine in engines_of(report.find(model=model)):
        for r in report.find(model=model, engine=engine):
            if r.status != "ok":
                prompt = f", prompt {r.case.prompt_tokens}" if len(prompts_of(report.results)) > 1 else ""
                found.append(f"{engine}, B = {r.case.batch}{prompt}: {r.status} ({r.reason})")
    return tuple(found)


def write(drawing: Drawing, folder: Path, *, png_of: Sequence[Theme] = (LIGHT,)) -> list[Path]:
    """NAME.svg, NAME-dark.svg, NAME.png and NAME.md with the words and the table. Returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for theme in THEMES:
        suffix = "" if theme is LIGHT else f"-{theme.name}"
        with themed(theme):
            figure = drawing.draw(theme)
            path = folder / f"{drawing.name}{suffix}.svg"
            figure.savefig(path, metadata={"Date": None, "Title": drawing.title})
            # Trailing blanks are matplotlib's; without them the files pass `git diff --check`.
            lines = path.read_text(encoding="utf-8").splitlines()
            path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")
            written.append(path)
            if theme in png_of:
                png = folder / f"{drawing.name}{suffix}.png"
                figure.savefig(png, dpi=150, metadata={"Software": None})
                written.append(png)
    page = folder / f"{drawing.name}.md"
    page.write_text(page_of(drawing), encoding="utf-8")
    return [*written, page]


def page_of(drawing: Drawing) -> str:
    """NAME.md: the figure, its alt text, and its numbers as a table."""
    numbers = words.table(drawing.header, drawing.rows)
    return words.page(drawing.title, drawing.name, drawing.alt, numbers, drawing.notes)
