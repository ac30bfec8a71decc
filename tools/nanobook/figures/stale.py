"""Figures held to what they are drawn from: results files, the chapters' drawings, the source."""

from __future__ import annotations

from pathlib import Path

from nanobench.report.figures.style import page_of
from nanobench.report.plot import drawings, published
from nanobook.figures.diagrams import diagrams
from nanobook.figures.imports import imports
from nanobook.figures.kernel_walk import walk
from nanoinfer.llm import ENGINES


def stale(root: Path) -> list[tuple[str, str]]:
    """Figures that their results files would draw otherwise: name and fault. By words and numbers; nothing is drawn."""
    chapters = (None, *ENGINES)
    made = [
        drawing
        for path in published(root / "bench" / "results")
        for newest in chapters
        for drawing in drawings(path, newest)
    ]
    drawn = {drawing.name: drawing for drawing in diagrams(root)}
    current = {f"{drawing.name}.md": page_of(drawing) for drawing in [*made, imports(), walk(), *drawn.values()]}
    faults = []
    for page in sorted((root / "figures").glob("*.md")):
        if page.name not in current:
            faults.append((page.name, "a figure of no results file"))
        elif page.read_text(encoding="utf-8") != current[page.name]:
            own = {"import-graph": "structure", "kernel-walk": "walk", **dict.fromkeys(drawn, "diagrams")}
            again = own.get(page.stem, "plot")
            faults.append((page.name, f"stale: draw it again with `python -m bench {again}`"))
    return faults
