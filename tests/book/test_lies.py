"""The pages of lies: each wrong one lies, each right one does not, one test tells them apart, each page shows them all.

Graphs that lied (chapter 4, whose marker, processes and real graphs are in test_graphs_that_lied.py), queues that
starved (5), kernels that raced (6), guesses that lied (7), ranks that disagreed (8).
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nanocourse.exercises import chapters
from nanocourse.exercises.chapters import run_folder
from nanocourse.exercises.outcomes import Raised, Returned, local
from tests.book.chapter_pages import FOLDERS, checkout

PAGES = {
    4: "graphs-that-lied", 5: "queues-that-starved", 6: "kernels-that-raced", 7: "guesses-that-lied",
    8: "ranks-that-disagreed",
}  # fmt: skip
Play = Callable[..., tuple[int, str, str]]  # exit code, output and errors of a program with these words
SAME = {"workspace", "one-part"}  # a fake graph cannot show the one; what differs of the other is the cost

pytestmark = checkout


def folder(chapter: int) -> Path:
    """The folder of a chapter's lies."""
    return FOLDERS[chapter] / ("races" if chapter == 6 else "lies")


def lies(chapter: int, name: str = "catalogue") -> ModuleType:
    """A module of the folder of a chapter's lies."""
    return run_folder(folder(chapter))(name)


def entries(chapter: int) -> dict[str, Any]:
    """All lies of a chapter by name; nothing where there is no checkout, as this is asked before tests are skipped."""
    if chapter not in FOLDERS:
        return {}
    return {name: lie for name, lie in lies(chapter).LIES.items() if not getattr(lie, "gpu", False)}


every_lie = pytest.mark.parametrize(
    "chapter, name", [(chapter, name) for chapter in PAGES for name in entries(chapter)]
)
every_page = pytest.mark.parametrize("chapter", PAGES)


@every_lie
def test_the_wrong_one_lies_and_the_right_one_does_not(chapter: int, name: str) -> None:
    if chapter == 4:
        truth, right, wrong = map(
            lies(4, "running").in_this_process(name, "cpu").sides.get, ("truth", "right", "wrong")
        )
    else:
        truth, right, wrong = entries(chapter)[name].sides()
    assert right == truth
    assert (wrong == truth) == (name in SAME)


@pytest.mark.parametrize("chapter, name", [(chapter, name) for chapter in (6, 7, 8) for name in entries(chapter)])
def test_one_test_finds_every_lie(chapter: int, name: str) -> None:
    wrong = lies(chapter).SUBJECTS[f"{name:15}wrong" if chapter == 6 else name]
    with pytest.raises(AssertionError):
        lies(chapter).check(wrong)


def test_it_passes_the_right_ones() -> None:
    lies(7).check(lies(7, "toy").Decoder)
    lies(8).check(lies(8, "toy").Rank)


def test_exercise_57_tells_queues_apart() -> None:
    """All that the page shows, and some more."""
    exercise = chapters.exercise("5.7")

    def verdict(kind: Any) -> Any:
        return local(exercise.function, exercise._formed(sys.modules["nanoinfer_ch05_ex7_starved"].lent(kind)))

    for name, kind in lies(5).RIGHT.items():
        assert verdict(kind) == Returned(None), name
    for name, kind in lies(5).LIARS.items():
        found = verdict(kind)
        assert isinstance(found, Raised), name
        assert found.kind == "AssertionError", name


def test_what_loses_on_a_used_counter_has_lost_in_no_order_on_a_new_one() -> None:
    small, wrong = lies(6, "right").small, lies(6, "wrong")
    for kind in (wrong.SecondReplay, wrong.ResetByLast):
        assert not small.search(*small.grid(kind(), layers=1))[2]


class TestProgram:
    """`python chapters/NN-name/lies` plays those that are named."""

    @pytest.fixture
    def play(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Play:
        def run(chapter: int, *words: str) -> tuple[int, str, str]:
            monkeypatch.setattr(
                sys, "argv", [str(folder(chapter)), *words, *(["--device", "cpu"] if chapter == 4 else [])]
            )
            monkeypatch.setattr(sys, "path", list(sys.path))
            with pytest.raises(SystemExit) as end:
                runpy.run_path(str(folder(chapter)), run_name="__main__")
            return int(end.value.code or 0), *capsys.readouterr()

        return run

    @every_page
    def test_plays_those_that_are_named(self, play: Play, chapter: int) -> None:
        name = next(iter(entries(chapter)))
        code, out, err = play(chapter, name)
        assert (code, err) == (0, "")
        assert out.startswith(f"{name}  ")
        assert all(thread in out.splitlines()[0] for thread in entries(chapter)[name].threads)
        assert "UNEXPECTED" not in out

    @every_page
    def test_a_lie_that_tells_the_truth_fails(self, play: Play, monkeypatch: pytest.MonkeyPatch, chapter: int) -> None:
        name, lie = next(iter(entries(chapter).items()))
        monkeypatch.setitem(lies(chapter).LIES, name, replace(lie, wrong=lie.right))
        code, out, _ = play(chapter, name)
        assert code == 1
        assert "UNEXPECTED" in out


@every_page
def test_every_lie_is_on_its_page_with_a_thread_and_its_owner(chapter: int) -> None:
    """That the page shows what runs is held by test_check_text.py."""
    text = (FOLDERS[chapter] / f"{PAGES[chapter]}.md").read_text(encoding="utf-8")
    listed = (FOLDERS[4] / "defects.md").read_text(encoding="utf-8") if chapter == 4 else text
    others = re.sub(r"[\w.-]+#\d+", "", listed)
    shown = set(re.findall(r'\[\[\[cog printed\("\w+/shown:(\w+)"\)', text))
    for name, lie in entries(chapter).items():
        assert name.replace("-", "_") in shown
        assert f"`{name}`" in text
        for thread in lie.threads[:1] if chapter == 4 else lie.threads:
            assert thread in text, name
            assert re.search(rf"\b{re.escape(thread.split('#')[0])}\b", others), thread
