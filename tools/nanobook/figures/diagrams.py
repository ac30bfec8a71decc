"""The diagrams of the chapters: each `chapters/NN-name/drawings.py` has a function `drawings()` that lists its own."""

from __future__ import annotations

from pathlib import Path

from nanobench.report.figures.style import Drawing
from nanobook.examples import load


def diagrams(root: Path, chapter: str | None = None) -> list[Drawing]:
    """All of them, or those of one chapter. ValueError for a chapter without any."""
    files = sorted((root / "chapters").glob(f"{chapter or '*'}/drawings.py"))
    if chapter is not None and not files:
        raise ValueError(f"chapters/{chapter} has no drawings.py")
    return [drawing for file in files for drawing in load(file).drawings()]
