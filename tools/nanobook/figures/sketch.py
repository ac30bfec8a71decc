"""How the chapters' diagrams are drawn: sketches of boxes and arrows, and charts with axes, as wide as the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from nanobench.report.figures.style import ACCENT, GRID, GROUND, MUTED, WIDTH

At = tuple[float, float]
Drawn = Callable[[], Figure]


class Sketch:
    """An axis without a frame, for boxes and arrows; y grows downwards."""

    def __init__(self, ax: Axes) -> None:
        self.ax = ax

    def write(self, at: At, text: str, color: str | None = None, size: float = 10.5, align: str = "left") -> None:
        """Text, centred on its line."""
        look = {"va": "center", "linespacing": 1.35, "zorder": 6}
        self.ax.text(*at, text, ha=align, fontsize=size, color=color, **look)  # type: ignore[arg-type]

    def box(self, at: At, size: At, text: str, *, accent: bool = False) -> None:
        """A rounded box around its centre `at`."""
        edge, width = (ACCENT, 2.0) if accent else (MUTED, 1.2)
        look: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.08", "facecolor": GROUND, "edgecolor": edge}
        corner = at[0] - size[0] / 2, at[1] - size[1] / 2
        self.ax.add_patch(FancyBboxPatch(corner, *size, linewidth=width, zorder=3, **look))
        self.write(at, text, align="center")

    def filled(
        self, corner: At, size: At, color: str | None, text: str = "", font: float = 9.5, ink: str | None = None
    ) -> None:
        """A rectangle from its upper left corner, filled with a pale shade of a colour, empty for None; text inside."""
        if color is not None:
            self.ax.add_patch(Rectangle(corner, *size, facecolor=color, alpha=0.25, edgecolor="none"))
        self.ax.add_patch(Rectangle(corner, *size, facecolor="none", edgecolor=color or GRID, linewidth=1.3))
        self.write((corner[0] + size[0] / 2, corner[1] + size[1] / 2), text, ink, font, "center")

    def square(self, at: At, kind: str, width: float = 0.92) -> None:
        """A cell: `new` is computed or written in this step, `read` is read, `hidden` is not read, or `empty`."""
        look: dict[str, Any] = {"facecolor": GROUND, "edgecolor": MUTED, "linewidth": 1.1}
        look |= {"facecolor": ACCENT, "edgecolor": ACCENT} if kind == "new" else {}
        look |= {"hatch": "////"} if kind == "hidden" else {}
        look |= {"linestyle": ":"} if kind == "empty" else {}
        self.ax.add_patch(Rectangle(at, width, 0.78, **look))
        if kind == "read":
            self.ax.add_patch(Rectangle(at, width, 0.78, facecolor=ACCENT, alpha=0.22, edgecolor="none"))

    def arrow(self, start: At, end: At, color: str, width: float = 1.3) -> None:
        """From start to end, without a gap."""
        look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 12, "connectionstyle": "arc3,rad=0.0"}
        look |= {"linewidth": width, "color": color, "zorder": 2, "shrinkA": 0, "shrinkB": 0}
        self.ax.add_patch(FancyArrowPatch(start, end, **look))


def sketched(width: float, height: float) -> Callable[[Callable[[Sketch], None]], Drawn]:
    """Make a function that draws a sketch into one that gives its figure. width, height: in units of the sketch."""

    def made(draw: Callable[[Sketch], None]) -> Drawn:
        def figure() -> Figure:
            figure = Figure(figsize=(WIDTH, WIDTH * height / width), layout=None)
            ax = figure.add_axes((0.0, 0.0, 1.0, 1.0))
            ax.axis("off")
            ax.set_xlim(0, width)
            ax.set_ylim(height, 0)
            draw(Sketch(ax))
            return figure

        return figure

    return made


def charted(
    height: float, rows: int = 1, columns: int = 1, *, share: str = "", **margins: float
) -> Callable[[Callable[..., None]], Drawn]:
    """Make a function that draws into axes into one that gives their figure. height: inches. share: "x" or "y"."""

    def made(draw: Callable[..., None]) -> Drawn:
        def figure() -> Figure:
            figure = Figure(figsize=(WIDTH, height), layout=None)
            axes = figure.subplots(rows, columns, sharex=share == "x", sharey=share == "y", squeeze=False)
            figure.subplots_adjust(right=0.985, **margins)
            draw(*axes.flat)
            return figure

        return figure

    return made
