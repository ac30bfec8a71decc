"""Slides: one idea each, with figures that exist, and none that overflows. The numbers are test_check_text.py's."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from nanobook import slides
from nanoinfer.cli import run
from tests.book.chapter_pages import CHAPTERS, checkout, without_code, words
from tests.book.test_site import CHROMIUM

DECKS = sorted(CHAPTERS.glob("*/slides.md"))
OVER = """<script>document.title = [...document.querySelectorAll("section")].map((each, at) =>
  each.scrollHeight > each.clientHeight || each.scrollWidth > each.clientWidth ? `over:${at + 1}` : "").join(" ")
</script>"""

pytestmark = checkout
deck = pytest.mark.parametrize("page", DECKS, ids=lambda page: page.parent.name)


@deck
def test_each_slide_has_a_title_few_words_and_its_figure(page: Path) -> None:
    """And a note that asks something; code is narrow and short enough to be read from the last row."""
    parts = slides.slides(page)
    assert 12 <= len(parts) <= 18
    assert sum("Ask: " in part for part in parts) >= len(parts) - 1
    for part in parts:
        shown = slides.NOTE.sub("", part)
        assert len(re.findall(r"^# \S", without_code(shown), re.M)) == 1, shown
        assert words(shown) <= 50, shown
        for language, block in re.findall(r"^```(\w*)\n(.*?)\n```$", shown, re.M | re.S):
            lines = block.split("\n")
            assert len(lines) <= 10, shown
            assert max(map(len, lines)) <= slides.WIDEST or language == "text", shown
        assert all((page.parent / figure).is_file() for figure in slides.FIGURE.findall(shown)), shown


def test_a_lecture_of_each_chapter_goes_through_its_deck() -> None:
    _, *lectures = re.split(r"^## Lecture ", (CHAPTERS / "teaching/prerequisites.md").read_text("utf-8"), flags=re.M)
    assert len(lectures) == len(DECKS)
    for page, lecture in zip(DECKS, lectures, strict=True):
        cells = re.findall(r"^\| \d+ to \d+ \|.*\| ([\d, to]+) \| [^|]+ \|$", lecture, re.M)
        spans = [[int(n) for n in re.findall(r"\d+", cell)] for cell in cells]
        shown = [n for first, *last in spans for n in range(first, (last or [first])[0] + 1)]
        assert shown == list(range(1, len(slides.slides(page)) + 1)), page


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@deck
def test_no_slide_overflows(page: Path, tmp_path: Path) -> None:
    made = slides.write(page, tmp_path)
    made.write_text(made.read_text("utf-8") + OVER, encoding="utf-8")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--window-size=1280,720", "--dump-dom", made.as_uri()]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert re.search("<title>(.*?)</title>", told)[1].split() == []  # type: ignore[index]


def test_the_command_writes_a_deck_of_its_own_and_one_for_marp(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["read", "1", "--slides", "--no-open", "--to", str(tmp_path)]) == 0
    made = Path(capsys.readouterr().out.strip())
    page = made.read_text("utf-8")
    assert not re.search(r"(src|href)=.(?!data:)|url\(", page)
    assert page.count("<section>") == page.count("<h1>") > page.count("<math") > 0
    marp = made.with_suffix(".md").read_text("utf-8")
    assert marp.startswith("---\nmarp: true\n")
    assert "<!--=" not in marp
    assert "[[[" not in marp
    assert all((tmp_path / figure).is_file() for figure in slides.FIGURE.findall(marp))
    assert run(["read", "1", "--slides", "--terminal"]) == 0
    told = capsys.readouterr().out
    assert told.lstrip().startswith("# ")
    assert "<!--" not in told
    assert "*Figure: " in told
    assert run(["read", "--slides"]) == 2
