"""Which exercise uses the idea of which: the graph of chapters 1 to 3, from the table that the syllabi share."""

from __future__ import annotations

from nanobench.report.figures.style import GRID, MUTED, Drawing
from nanobook.figures.sketch import Sketch, sketched

# Exercise, what it needs, and where it stands: column and line. Columns 0 to 2 are chapter 1, 3 and 4 the second one.
NEEDS: dict[str, tuple[str, tuple[str, ...], tuple[float, float]]] = {
    "1.1": ("attention", (), (0, 1)), "1.2": ("block", ("1.1",), (1, 0)), "1.3": ("last", (), (0, 3)),
    "1.4": ("filters", (), (0, 5)), "1.5": ("noise", (), (1, 5)), "1.6": ("generate", (), (0, 4)),
    "1.7": ("cost", ("1.2",), (2, 0)), "1.8": ("oracle", ("1.6",), (1, 4)),
    "2.1": ("keep", ("1.1",), (3, 1)), "2.2": ("write", ("1.3",), (3, 3)), "2.3": ("mask", ("1.1",), (3, 2)),
    "2.4": ("positions", ("1.3",), (3, 4)), "2.5": ("read", ("2.3",), (4, 2)), "2.6": ("budget", (), (3, 5)),
    "3.1": ("append", ("2.6",), (5, 5)), "3.2": ("slots", ("2.2",), (5, 3)), "3.3": ("waste", ("2.6",), (5, 6)),
    "3.4": ("address", ("3.2",), (6, 3)), "3.5": ("online", ("1.1",), (5, 0)),
    "3.6": ("kernel", ("3.4", "3.5"), (7, 2)), "3.7": ("join", ("3.5",), (7, 0)), "3.8": ("splits", (), (7, 5)),
}  # fmt: skip
WIDE, HIGH = 1.25, 0.9  # from one column, and one line, to the next
BOX = (0.98, 0.52)
HEADS = {"chapter 1": 1, "chapter 2": 3.5, "chapter 3": 6}


def drawings() -> list[Drawing]:
    """The one figure of the syllabi."""
    return [needs()]


def needs() -> Drawing:
    """The graph of prerequisites."""

    def at(place: tuple[float, float]) -> tuple[float, float]:
        return 0.62 + place[0] * WIDE, 0.95 + place[1] * HIGH

    @sketched(8 * WIDE, 7 * HIGH + 0.5)
    def draw(on: Sketch) -> None:
        for text, column in HEADS.items():
            on.write((at((column, 0))[0], 0.3), text, MUTED, align="center")
        for edge in (2.5, 4.5):
            x = at((edge, 0))[0]
            on.ax.plot([x, x], [0.1, at((0, 6.4))[1]], color=GRID, linewidth=1, zorder=1)
        for _, (_, needed, place) in NEEDS.items():
            for other in needed:
                start, end = at(NEEDS[other][2]), at(place)
                on.arrow((start[0] + BOX[0] / 2, start[1]), (end[0] - BOX[0] / 2, end[1]), MUTED)
        for id, (name, _, place) in NEEDS.items():
            on.box(at(place), BOX, f"{id}\n{name}")

    rows = tuple((f"{id} {name}", ", ".join(needed) or "–") for id, (name, needed, _) in NEEDS.items())
    told = "; ".join(f"{id} needs {' and '.join(needed)}" for id, (_, needed, _) in NEEDS.items() if needed)
    alone = ", ".join(id for id, (_, needed, _) in NEEDS.items() if not needed)
    alt = f"Which exercise uses the idea of which, in chapters 1 to 3: {told}. Nothing is needed for {alone}."
    return Drawing("teaching/exercise-needs", "What each exercise needs", alt, ("exercise", "needs"), rows, draw)
