"""The import graph by chapter: every module with its lines of code, every arrow to what it imports."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from nanobench.report.figures.style import WIDTH, Drawing, Theme
from nanobook.structure import CHAPTER, import_graph, lines_of_chapter, lines_of_modules, reduced

TITLES = {1: "naive generation", 2: "the KV cache", 3: "paged attention", 4: "CUDA graphs"}
BOX = (0.92, 0.46)  # width and height, where columns and rows are 1 apart
COLUMNS = 6


def imports() -> Drawing:
    """The drawing; its table says each module's chapter, lines and imports in full."""
    graph, lines = import_graph(), lines_of_modules()
    places = layout(graph)
    arrows = reduced(graph)
    rows = [
        (str(CHAPTER[name]), f"`{name}`", str(lines[name]), ", ".join(f"`{n}`" for n in sorted(graph[name])) or "–")
        for name in graph
    ]
    chapters = sorted({CHAPTER[name] for name in graph})
    totals = ", ".join(f"chapter {n} ({TITLES[n]}) {lines_of_chapter(n)}" for n in chapters)

    def draw(theme: Theme) -> Figure:
        height = max(y for _, y in places.values()) + 1
        figure = Figure(figsize=(WIDTH, 0.95 * height + 0.5), layout=None)
        ax = figure.add_axes((0.01, 0.02, 0.98, 0.96))
        ax.axis("off")
        ax.set_xlim(-0.62, COLUMNS - 0.38)
        ax.set_ylim(height - 0.55, -0.62)
        for chapter in chapters:
            _band(ax, chapter, [y for name, (_, y) in places.items() if CHAPTER[name] == chapter], theme)
        for name, needed in arrows.items():
            for other in needed:
                _arrow(ax, places[name], places[other], theme, CHAPTER[name] == max(chapters))
        for name, (x, y) in places.items():
            newest = CHAPTER[name] == max(chapters) and len(chapters) > 1
            edge = theme.accent if newest else theme.muted
            corner = (x - BOX[0] / 2, y - BOX[1] / 2)
            ax.add_patch(
                FancyBboxPatch(
                    corner, *BOX, boxstyle="round,pad=0,rounding_size=0.07", facecolor=theme.background, edgecolor=edge,
                    linewidth=2.0 if newest else 1.2, zorder=3,
                )
            )  # fmt: skip
            size = 10 if len(name) < 12 else 9 if len(name) < 16 else 8.5
            ax.text(x, y - 0.08, name, ha="center", va="center", fontsize=size, zorder=4)
            ax.text(
                x, y + 0.12, f"{lines[name]} lines", ha="center", va="center", fontsize=8.5, color=theme.muted, zorder=4
            )
        return figure

    alt = (
        f"The modules of nanoinfer by chapter, with an arrow to each module that a module imports; lines of code: "
        f"{totals}. No arrow leads to a later chapter."
    )
    return Drawing(
        "import-graph",
        "The import graph is the syllabus",
        alt,
        ("chapter", "module", "lines", "imports"),
        tuple(rows),
        draw,
    )


def layout(graph: dict[str, set[str]]) -> dict[str, tuple[float, float]]:
    """Rows by chapter and, within one, by the longest way down; a module stands below what it imports.

    On the right stand later chapters, each a column further in, and what they import, so that few arrows cross boxes.
    """
    depth: dict[str, int] = {}
    for name in sorted(graph, key=lambda name: len(_all_below(graph, name))):
        depth[name] = 1 + max((depth[n] for n in graph[name] if CHAPTER[n] == CHAPTER[name]), default=-1)
    arrows = reduced(graph)
    shared = {n for name in graph for n in arrows[name] if CHAPTER[n] < CHAPTER[name]}
    places: dict[str, tuple[float, float]] = {}
    y = 0.0
    for chapter in sorted({CHAPTER[name] for name in graph}):
        own = {name: d for name, d in depth.items() if CHAPTER[name] == chapter}
        # Of what later chapters import, the lowest stands outermost.
        columns = {n: COLUMNS - 1 - i for i, n in enumerate(sorted(shared & own.keys(), key=lambda n: (-own[n], n)))}
        for level in sorted(set(own.values())):
            row = sorted((n for n in own if own[n] == level), key=lambda n: _mean_x(arrows[n], places))
            if chapter == 1:
                taken = {columns[n] for n in row if n in columns}
                left = iter([x for x in range(COLUMNS) if x not in taken])
                places.update({n: (columns[n] if n in columns else next(left), y) for n in row})
            else:
                # Right to left: who imports earlier chapters comes first, and of these who reaches furthest right.
                outward = sorted(
                    row, key=lambda n: (all(CHAPTER[m] == chapter for m in graph[n]), -_mean_x(arrows[n], places))
                )
                inset = 1 if not any(CHAPTER[m] < chapter for m in graph[outward[0]]) else 0
                places.update({n: (COLUMNS + 1 - chapter - i - inset, y) for i, n in enumerate(outward)})
            y += 0.92
        y += 0.34
    return places


def _all_below(graph: dict[str, set[str]], name: str) -> set[str]:
    return set().union(*({other} | _all_below(graph, other) for other in graph[name]))


def _mean_x(needed: set[str], places: dict[str, tuple[float, float]]) -> float:
    known = [places[name][0] for name in needed if name in places]
    return sum(known) / len(known) if known else 0.0


def _band(ax: Axes, chapter: int, rows: list[float], theme: Theme) -> None:
    """A chapter's background and its name."""
    top, bottom = min(rows) - 0.56, max(rows) + 0.36
    ax.add_patch(
        FancyBboxPatch(
            (-0.58, top), COLUMNS + 0.16, bottom - top, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=theme.grid, alpha=0.35, edgecolor="none", zorder=0,
        )
    )  # fmt: skip
    title = f"{chapter}  {TITLES[chapter]}, {lines_of_chapter(chapter):,} lines"
    ax.text(-0.5, top + 0.05, title, fontsize=10.5, va="top", zorder=4)


def _arrow(ax: Axes, source: tuple[float, float], target: tuple[float, float], theme: Theme, newest: bool) -> None:
    """From the top of a box to the bottom of what it imports, bent a little so that boxes between stay legible."""
    start, end = (source[0], source[1] - BOX[1] / 2), (target[0], target[1] + BOX[1] / 2)
    bend = 0.12 if abs(source[0] - target[0]) < 0.3 and source[1] - target[1] > 1.5 else 0.0
    ax.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=10, linewidth=1.1, shrinkA=0, shrinkB=1,
            color=theme.accent if newest else theme.muted, connectionstyle=f"arc3,rad={bend}", zorder=2,
        )
    )  # fmt: skip
