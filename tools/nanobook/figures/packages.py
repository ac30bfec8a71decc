"""All packages and their rooms: a band for each package, a box for each room, an arrow to what a room imports.

A room is a subpackage, or a module that lies beside them. Arrows that follow from others are left out, and an arrow
between two bands stands for all imports from one package to the other; the table has every import.
"""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import TopologicalSorter

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from nanobench.report.figures.style import ACCENT, GRID, GROUND, MUTED, WIDTH, Drawing
from nanobook.source import PACKAGES, Graph, folder_of, grouped, import_graph, modules, reduced

TITLES = dict(zip(PACKAGES, ("the engine", "the benchmark", "the classroom", "what makes the book"), strict=True))
BOX = (1.12, 0.44)  # inches, as all lengths here
COLUMN, ROW, EDGE, HEAD = 1.26, 0.76, 0.1, 0.34
Place = tuple[float, float]


@dataclass(frozen=True)
class Band:
    """Where a package stands, and its rooms: the left upper corner, the width, and the rooms' places within it."""

    left: float
    top: float
    width: float
    places: dict[str, Place]

    @property
    def height(self) -> float:
        return HEAD + ROW * (1 + max(y for _, y in self.places.values()))

    def center(self, room: str) -> Place:
        x, y = self.places[room]
        columns = 1 + max(x for x, _ in self.places.values())
        margin = (self.width - columns * COLUMN) / 2
        return self.left + margin + COLUMN * (x + 0.5), self.top + HEAD + ROW * (y + 0.42)


def room_of(module: str) -> str | None:
    """`nanoinfer.cache` for `nanoinfer.cache.paged`; None for a package itself and for what starts it."""
    package, _, rest = module.partition(".")
    return f"{package}.{rest.partition('.')[0]}" if rest and rest != "__main__" else None


def packages() -> Drawing:
    """The drawing; its table has each room's imports. No line counts: they would be stale with every change of code."""
    files = {name: path for package in PACKAGES for name, path in modules(package, folder_of(package)).items()}
    rooms = {name: room for name in files if (room := room_of(name))}
    graph = grouped(import_graph(files), rooms)
    owner = {room: room.partition(".")[0] for room in graph}
    outer = grouped(graph, owner)
    bands = arranged(graph, outer)

    def draw() -> Figure:
        height = max(band.top + band.height for band in bands.values()) + EDGE
        figure = Figure(figsize=(WIDTH, height), layout=None)
        ax = figure.add_axes((0, 0, 1, 1))
        ax.axis("off")
        ax.set_xlim(0, WIDTH)
        ax.set_ylim(height, 0)
        for package, band in bands.items():
            _box(ax, (band.left, band.top), band.width, band.height, GRID, "none", 0.35)
            ax.text(band.left + 0.12, band.top + 0.1, f"{package}: {TITLES[package]}", fontsize=10.5, va="top")
            for other in sorted(reduced(outer)[package]):
                _between(ax, band, bands[other])
            for room, needed in reduced(_inner(graph, package)).items():
                x, y = band.center(room)
                for target in sorted(needed):
                    to = band.center(target)
                    _arrow(ax, (x, y - BOX[1] / 2), (to[0], to[1] + BOX[1] / 2), MUTED, 1.1)
                _box(ax, (x - BOX[0] / 2, y - BOX[1] / 2), *BOX, GROUND, MUTED, 1.0)
                ax.text(x, y, room.partition(".")[2], ha="center", va="center", fontsize=10, zorder=4)
        return figure

    rows = [
        (f"`{room}`", ", ".join(f"`{name}`" for name in sorted(graph[room])) or "–")
        for package in outer
        for room in sorted(bands[package].places, key=lambda room: bands[package].places[room][::-1])
    ]
    told = "; ".join(
        f"{package}, {TITLES[package]}, imports {', '.join(sorted(outer[package])) or 'none of the others'}"
        for package in outer
    )
    alt = f"The four packages and their rooms, with an arrow to what each imports: {told}. No arrows form a circle."
    return Drawing("book/packages", "Packages and their rooms", alt, ("room", "imports"), tuple(rows), draw)


def arranged(graph: Graph, outer: Graph) -> dict[str, Band]:
    """Packages below what they import; those of one layer stand side by side."""
    bands: dict[str, Band] = {}
    top = EDGE
    for layer in layers(outer):
        width = (WIDTH - EDGE * (len(layer) + 1)) / len(layer)
        for at, package in enumerate(layer):
            places = placed(_inner(graph, package), int(width / COLUMN))
            bands[package] = Band(EDGE + at * (width + EDGE), top, width, places)
        top = max(bands[package].top + bands[package].height for package in layer) + 0.36
    return bands


def layers(graph: Graph) -> list[list[str]]:
    """The names in layers: each below all that it needs. CycleError where there is a circle."""
    sorter, found = TopologicalSorter(graph), []
    sorter.prepare()
    while sorter.is_active():
        found.append(sorted(sorter.get_ready()))
        sorter.done(*found[-1])
    return found


def placed(graph: Graph, columns: int) -> dict[str, Place]:
    """Column and row of each room: moved until, as far as possible, no arrow crosses a box and all are short."""
    rows = [part for layer in layers(graph) for part in (layer[i : i + columns] for i in range(0, len(layer), columns))]
    places = {room: (float(x), float(y)) for y, row in enumerate(rows) for x, room in enumerate(row)}
    arrows = [(room, other) for room, needed in reduced(graph).items() for other in sorted(needed)]
    best, improved = _cost(places, arrows), True
    while improved:
        improved = False
        for room in sorted(places):
            for x in range(columns):
                tried = dict(places)
                here, there = places[room], (float(x), places[room][1])
                tried |= {other: here for other, place in places.items() if place == there}
                tried[room] = there
                if (cost := _cost(tried, arrows)) < best:
                    places, best, improved = tried, cost, True
    left = min(x for x, _ in places.values())
    return {room: (x - left, y) for room, (x, y) in places.items()}


def _cost(places: dict[str, Place], arrows: list[tuple[str, str]]) -> float:
    """How hard the picture is to read: boxes that an arrow crosses, and how far arrows go sideways."""
    lines = [(places[a], places[b]) for a, b in arrows]
    hidden = sum(
        abs(ax + (bx - ax) * (y + edge - ay) / (by - ay) - x) < 0.5
        for (ax, ay), (bx, by) in lines
        for x, y in places.values()
        for edge in (-0.3, 0.3)
        if by < y < ay
    )
    return 100 * hidden + sum(abs(a[0] - b[0]) for a, b in lines)


def _inner(graph: Graph, package: str) -> Graph:
    """The rooms of one package, and what they import of it."""
    own = {room for room in graph if room.startswith(f"{package}.")}
    return {room: graph[room] & own for room in sorted(own)}


def _between(ax: Axes, band: Band, other: Band) -> None:
    """An arrow from the top of a package's band to the band above it."""
    x = max(band.left, other.left) + min(band.width, other.width) / 2
    _arrow(ax, (x, band.top), (x, other.top + other.height), ACCENT, 2.2)


def _box(ax: Axes, at: Place, width: float, height: float, face: str, edge: str, alpha: float) -> None:
    style = "round,pad=0,rounding_size=0.07"
    patch = FancyBboxPatch(at, width, height, boxstyle=style, facecolor=face, edgecolor=edge, alpha=alpha)
    patch.set_zorder(3 if alpha == 1 else 0)  # a band lies behind the arrows, a room before them
    ax.add_patch(patch)


def _arrow(ax: Axes, start: Place, end: Place, color: str, width: float) -> None:
    arrow = {"arrowstyle": "-|>", "mutation_scale": 10 * width**0.5, "linewidth": width, "shrinkA": 0, "shrinkB": 1}
    ax.add_patch(FancyArrowPatch(start, end, color=color, zorder=2, **arrow))
