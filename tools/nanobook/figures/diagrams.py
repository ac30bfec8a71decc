"""The diagrams: each `chapters/NN-name/drawings.py` has a function `drawings()` that lists its own."""

from __future__ import annotations

from pathlib import Path

from nanobench.report.figures.style import Drawing
from nanobook.examples import load


def diagrams(root: Path, folder: str | None = None) -> list[Drawing]:
    """All of them, or those of one folder of chapters/. ValueError for a folder without any."""
    files = sorted((root / "chapters").glob(f"{folder or '*'}/drawings.py"))
    found = [drawing for file in files for drawing in load(file).drawings()]
    if folder and not found:
        raise ValueError(f"there is no chapters/{folder}/drawings.py")
    return found
