"""Figures held to what they are drawn from: results files, the chapters' drawings, the source."""

from __future__ import annotations

from pathlib import Path

from nanobench.report.figures.style import page_of
from nanobench.report.plot import book_drawings
from nanobook.figures.diagrams import diagrams


def stale(root: Path) -> list[tuple[str, str]]:
    """Figures that would be drawn otherwise now: name and fault. By words and numbers; nothing is drawn."""
    current = {f"{drawing.name}.md": page_of(drawing) for drawing in diagrams(root)}
    drawings = book_drawings(root / "bench" / "results")
    current |= {f"bench/{drawing.name}.md": page_of(drawing) for drawing in drawings}
    faults = []
    for page in sorted((root / "figures").glob("**/*.md")):
        name = page.relative_to(root / "figures").as_posix()
        if name not in current:
            faults.append((name, "a figure of no results file, and of no drawings.py"))
        elif page.read_text(encoding="utf-8") != current[name]:
            again = "bench plot" if name.startswith("bench/") else f"nanobook draw {page.parent.name}"
            faults.append((name, f"stale: draw it again with `python -m {again}`"))
    return faults
