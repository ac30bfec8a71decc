"""The chapters' diagrams and the book's own: drawn from code and small runs, the same each time, and never stale."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from nanobench.report.figures.style import Drawing, write
from nanobook.__main__ import app
from nanobook.figures.diagrams import diagrams
from nanobook.figures.stale import stale
from tests.book.chapter_pages import CHAPTERS, ROOT
from tests.cut_text import cut_text

FIGURES = ROOT / "figures"
DRAWINGS = """
from matplotlib.figure import Figure
from nanobench.report.figures.style import Drawing

def drawings():
    return [Drawing("some/thing", "A thing", "It is WORDS.", ("a", "b"), (("1", "2"),), lambda: Figure(figsize=(2, 1)))]
"""


def test_a_figure_is_an_svg_and_a_page_that_shows_it_in_words() -> None:
    pages, pictures = ({path.with_suffix("") for path in FIGURES.glob(f"*/*.{kind}")} for kind in ("md", "svg"))
    assert pages == pictures
    for path in pages:
        page = path.with_suffix(".md").read_text(encoding="utf-8")
        assert re.findall(r'<img src="([^"]+)" width="800" alt="[^"]{60,}">', page) == [f"{path.name}.svg"]


def test_another_process_draws_the_same_bytes(tmp_path: Path) -> None:
    folder = "01-naive"
    command = [sys.executable, "-m", "nanobook", "draw", folder]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    (tmp_path / "chapters").symlink_to(CHAPTERS)
    subprocess.run([*command, "--root", str(tmp_path)], check=True, cwd=ROOT, env=environment)
    for drawing in diagrams(ROOT, folder):
        for path in write(drawing, tmp_path):
            assert path.read_bytes() == (tmp_path / "figures" / path.relative_to(tmp_path)).read_bytes(), path.name


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in CHAPTERS.glob("*/drawings.py")))
def test_no_text_of_a_diagram_is_cut(folder: str) -> None:
    assert {drawing.name: cut for drawing in diagrams(ROOT, folder) if (cut := cut_text(drawing))} == {}


def test_text_that_an_edge_cuts_is_found() -> None:
    """By the figure's edge, and by that of axes that clip; not the name of a tick that is not shown."""

    def draw() -> Figure:
        figure = Figure(figsize=(4, 3))
        ax = figure.subplots()
        ax.set_title("a heading that is too long for a figure of four inches", loc="left")
        ax.text(0.5, 0.9, "a name at the edge of its axes", clip_on=True)
        ax.text(0.0, 0.2, "inside", clip_on=True)
        ax.set_xticks([0.0, 0.5, 9.0], ["zero", "half", "far away"])
        ax.set_xlim(0, 1)
        return figure

    found = cut_text(Drawing("some/thing", "A thing", "It is.", (), (), draw))
    assert found == ["a name at the edge of its axes", "a heading that is too long for a figure of four inches"]


def test_a_chapters_figures_are_drawn_and_held_to_its_code(tmp_path: Path) -> None:
    file = tmp_path / "chapters" / "some" / "drawings.py"
    file.parent.mkdir(parents=True)
    file.write_text(DRAWINGS, encoding="utf-8")
    draw = ["draw", "some", "--root", str(tmp_path)]
    assert CliRunner().invoke(app, draw).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "figures" / "some").iterdir()) == ["thing.md", "thing.svg"]
    assert stale(tmp_path) == []
    file.write_text(DRAWINGS.replace("WORDS", "other words"), encoding="utf-8")
    assert stale(tmp_path) == [("some/thing.md", "stale: draw it again with `python -m nanobook draw some`")]
    file.unlink()
    assert [fault for _, fault in stale(tmp_path)] == ["a figure of no results file, and of no drawings.py"]
    refused = CliRunner().invoke(app, draw)
    assert refused.exit_code == 2
    assert "there is no chapters/some/drawings.py" in refused.output
