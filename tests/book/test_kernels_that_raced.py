"""Kernels that raced: each wrong side loses in some order, no right side does, and the page says what runs."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from nanobook.examples import load, printed

ROOT = Path(__file__).parents[2]
CHAPTER = ROOT / "chapters" / "06-kernels"
PAGE, FOLDER = CHAPTER / "kernels-that-raced.md", CHAPTER / "races"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="not a checkout")


def races(name: str) -> ModuleType:
    module: ModuleType = load(FOLDER / "loading.py").races(name)
    return module


RACES = races("catalogue").RACES if PAGE.is_file() else {}
ENDS = {
    "not-resident": "[0, 1] wait for ever",
    "reset-by-last": "[0, 1] wait for ever",
    "second-replay": "[0, 1] wait for ever",
    "early-unlock": "2 ends with 10, not 21",
    "two-halves": "0 ends with [1558, 52, -51], not [1617, -19, -87]",
}


@cache
def found(name: str, side: str) -> tuple[int, int, list[str]]:
    result: tuple[int, int, list[str]] = getattr(RACES[name], side)()
    return result


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


class TestRaces:
    @pytest.mark.parametrize("name", RACES)
    def test_the_wrong_side_loses(self, name: str) -> None:
        with pytest.raises(AssertionError, match=re.escape(ENDS[name])):
            races("catalogue").check(found(name, "wrong"))

    @pytest.mark.parametrize("name", RACES)
    def test_the_right_side_ends_right_in_many_orders(self, name: str) -> None:
        _, ended, _ = found(name, "right")
        races("catalogue").check(found(name, "right"))
        assert ended > 50

    def test_the_first_launch_hides_the_second(self) -> None:
        """What loses on a used counter has lost in no order on a new one."""
        right, wrong = races("right"), races("wrong")
        assert not right.small.search(*right.small.grid(wrong.SecondReplay(), layers=1))[2]
        assert not right.small.search(*right.small.grid(wrong.ResetByLast(), layers=1))[2]

    def test_a_grid_is_refused_only_where_it_does_not_fit(self) -> None:
        refuse = races("right").refuse
        assert "2 programs" in refuse(2, 1)
        assert refuse(2, 2) == refuse(1, 2) == ""

    def test_each_is_short(self) -> None:
        source = (FOLDER / "wrong.py").read_text(encoding="utf-8")
        bodies = re.findall(r"^class \w+\(.*?(?=^class |\Z)", source, re.S | re.M)
        assert len(bodies) == len(RACES) - 1  # one is a launch, and no kernel
        assert all(5 <= len(body.strip().splitlines()) <= 16 for body in bodies)


class TestProgram:
    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(FOLDER), *words], capture_output=True, text=True, check=False)

    def test_plays_those_that_are_named(self) -> None:
        done = self.run("early-unlock")
        assert done.returncode == 0, done.stderr
        first, *events = done.stdout.splitlines()
        assert first == "early-unlock  triton#4504, triton#6307, tritonbench#1266"
        assert [event.strip() for event in events] == found("early-unlock", "wrong")[2]

    def test_one_that_is_unknown_is_told(self) -> None:
        done = self.run("nobody")
        assert (done.returncode, done.stdout) == (2, "")
        assert "'nobody' is none of not-resident" in done.stderr


class TestPage:
    def test_headings_name_the_races_in_order(self, text: str) -> None:
        assert re.findall(r"^## \d+\. .+ \(`([a-z-]+)`\)$", text, re.M) == list(RACES)
        assert [int(n) for n in re.findall(r"^## (\d+)\. ", text, re.M)] == list(range(1, len(RACES) + 3))

    def test_every_race_is_shown_as_it_runs(self, text: str) -> None:
        shown = dict(re.findall(r'printed\("races/shown:(\w+)"\) \]\]\]-->\n```text\n(.+?)\n```', text, re.S))
        assert list(shown) == [*(name.replace("-", "_") for name in RACES), "verdicts"]
        assert printed(FOLDER / "shown.py", "early_unlock") == shown["early_unlock"].split("\n")
        for name in RACES:
            assert shown[name.replace("-", "_")].split("\n")[-1] == ENDS[name]
            assert f"{name:15}wrong  {ENDS[name]}" in shown["verdicts"].split("\n")
            assert f"{name:15}right  passes" in shown["verdicts"].split("\n")

    def test_every_thread_is_cited_in_its_section(self, text: str) -> None:
        sections = dict(zip(RACES, re.split(r"^## \d+\. ", text, flags=re.M)[2:], strict=False))
        for name, race in RACES.items():
            assert all(thread in sections[name] for thread in race.threads), name
        owners = text.partition("The owners are")[2].partition("\n\n")[0]
        assert all(thread.split("#")[0] in owners for race in RACES.values() for thread in race.threads)

    def test_tests_that_are_named_are_there(self, text: str) -> None:
        named = set(re.findall(r"`(test_\w+)`", text))
        there = (ROOT / "tests" / "gpu" / "test_persistent.py").read_text(encoding="utf-8")
        assert len(named) >= 4
        assert not [name for name in named if f"def {name}(" not in there]

    def test_what_it_says_of_how_many(self, text: str) -> None:
        assert len(RACES) == 5
        assert "shows five defects" in text
        assert "shows five defects" in (CHAPTER / "README.md").read_text(encoding="utf-8")

    def test_links_lead_somewhere(self, text: str) -> None:
        targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))
        assert targets
        assert all((CHAPTER / target).exists() for target in targets)
