"""Ranks that disagreed: each lie lies, right ranks do not, one test tells them apart, the page says what runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from nanobook.examples import load, printed

ROOT = Path(__file__).parents[2]
CHAPTER = ROOT / "chapters" / "08-parallel"
PAGE, FOLDER = CHAPTER / "ranks-that-disagreed.md", CHAPTER / "lies"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="not a checkout")


def lies(name: str) -> ModuleType:
    module: ModuleType = load(FOLDER / "loading.py").lies(name)
    return module


LIES = lies("catalogue").LIES if PAGE.is_file() else {}


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


class TestToy:
    def test_recites(self) -> None:
        toy = lies("toy")
        for rooms in ([9], [9, 9], [9, 9, 9], [9, 9, 9, 9]):
            for told in lies("play").play(toy.Rank, rooms, [toy.Asked("owl ", 11), toy.Asked("zoo", 4)]):
                assert told == (["owl owl owl", "zooz"], "")

    def test_noise_depends_on_seed_and_place_alone(self) -> None:
        toy = lies("toy")
        texts = [lies("play").play(toy.Rank, [40], [toy.Asked("owl ", 30, seed)])[0].texts[0] for seed in (0, 1, 1, 2)]
        assert texts[1] == texts[2]
        assert len({*texts}) == 3

    def test_parts_of_a_number_are_the_number(self) -> None:
        toy = lies("toy")
        for size in range(1, 6):
            ranks = [toy.Rank(rank, size, 1, {}) for rank in range(size)]
            assert all(sum(rank.part(number) for rank in ranks) == number for number in range(90))
            assert [letter for rank in ranks for letter in rank.own()][:27] == [*range(27)]

    def test_any_ranks_write_what_one_does(self) -> None:
        """Any texts, rooms and luck; with less room they wait, and are the same."""
        toy, draw = lies("toy"), Random(7)
        for luck in range(60):
            asked = [
                toy.Asked(
                    "".join(draw.choices(toy.LETTERS, k=draw.randint(1, 9))), draw.randint(1, 15),
                    draw.choice([0, 1, 2]), draw.choice([0, 0, 21, 90]),
                )
                for _ in range(draw.randint(1, 6))
            ]  # fmt: skip
            rooms = [draw.randint(6, 20) for _ in range(draw.randint(2, 4))]
            alone = [lies("play").play(toy.Rank, [60], [one])[0].texts[0] for one in asked]
            assert lies("play").play(toy.Rank, rooms, asked, luck) == [(alone, "")] * len(rooms)


class TestLies:
    @pytest.mark.parametrize("name", LIES)
    def test_lies_on_two_ranks_alone(self, name: str) -> None:
        catalogue, toy, lie = lies("catalogue"), lies("toy"), LIES[name]
        expected = catalogue.one_rank(lie.asked, min(lie.rooms))
        assert lie.told(toy.Rank) == [(expected, "")] * 2
        assert all(told != (expected, "") for told in lie.told(lie.wrong))
        if name != "own-dice":  # whose letters are drawn in another way
            assert lies("play").play(lie.wrong, lie.rooms[:1], lie.asked) == [(expected, "")]

    @pytest.mark.parametrize("name", LIES)
    def test_one_rank_finds_it(self, name: str) -> None:
        catalogue = lies("catalogue")
        with pytest.raises(AssertionError, match="rank"):
            catalogue.check(LIES[name].wrong)

    def test_the_right_one_passes(self) -> None:
        lies("catalogue").check(lies("toy").Rank)

    def test_a_rank_that_is_not_late_hides_it(self) -> None:
        """One slot is right where a rank goes on only when the other has read."""
        toy, wrong = lies("toy"), lies("wrong")

        class Patient(wrong.StillRead):  # type: ignore[name-defined, misc]
            def exchange(self, kind: str, mine: Any) -> Any:
                every = yield from super().exchange(kind, mine)
                call = self.shared["read", kind, self.rank] = self.calls[kind]
                yield lambda: all(self.shared["read", kind, rank] >= call for rank in range(self.size))
                return every

        lies("catalogue").check(Patient)
        assert lies("play").play(Patient, [9, 9], [toy.Asked("owl ", 9)], 5)[1].texts == ["owl owl o"]

    def test_a_clock_alone_leaves_a_rank_waiting(self) -> None:
        """Where the row that ends early is the only one."""
        first, second = lies("play").play(lies("wrong").OwnClock, [9, 9], [lies("toy").Asked("a hare ", 14, 0, 51)])
        assert (first.end, second.end) == ("waits for ever", "")

    def test_each_is_short(self) -> None:
        source = (FOLDER / "wrong.py").read_text(encoding="utf-8")
        for lie in LIES.values():
            body = source.partition(f"class {lie.wrong.__name__}(")[2].split("\n\n\n")[0]
            assert 3 <= len(body.splitlines()) <= 16


class TestProgram:
    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(FOLDER), *words], capture_output=True, text=True, check=False)

    def test_plays_those_that_are_named(self) -> None:
        done = self.run("own-pool")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "own-pool  nano-vllm#187, nano-vllm#275, sglang#10214",
            "  right, rank 0  a hare a | the wolf  | an owl an",
            "  right, rank 1  a hare a | the wolf  | an owl an",
            "  wrong, rank 0  a  | th | an | waits for ever",
            "  wrong, rank 1  a  | th | an | wrote outside of its cache",
        ]

    def test_one_that_is_unknown_is_told(self) -> None:
        done = self.run("nobody")
        assert (done.returncode, done.stdout) == (2, "")
        assert "'nobody' is none of padding-wins" in done.stderr


class TestPage:
    def test_headings_name_the_lies_in_order(self, text: str) -> None:
        assert re.findall(r"^## \d+\. .+ \(`([a-z-]+)`\)$", text, re.M) == list(LIES)
        assert [int(n) for n in re.findall(r"^## (\d+)\. ", text, re.M)] == list(range(1, len(LIES) + 3))

    def test_every_lie_is_shown_as_it_runs(self, text: str) -> None:
        shown = dict(re.findall(r'printed\("lies/shown:(\w+)"\) \]\]\]-->\n```text\n(.+?)\n```', text, re.S))
        assert list(shown) == [*(name.replace("-", "_") for name in LIES), "verdicts"]
        for name, lines in shown.items():
            assert printed(FOLDER / "shown.py", name) == lines.split("\n")
        verdicts = shown["verdicts"].split("\n")
        assert [line.split()[0] for line in verdicts[1:]] == list(LIES)
        assert [line.endswith("passes") for line in verdicts] == [True, *[False] * len(LIES)]

    def test_every_thread_is_cited_in_its_section(self, text: str) -> None:
        sections = dict(zip(LIES, re.split(r"^## \d+\. ", text, flags=re.M)[2:], strict=False))
        for name, lie in LIES.items():
            assert all(thread in sections[name] for thread in lie.threads), name
        owners = text.partition("The owners are")[2].partition("\n\n")[0]
        assert all(thread.split("#")[0] in owners for lie in LIES.values() for thread in lie.threads)

    def test_tests_that_are_named_are_there(self, text: str) -> None:
        named = set(re.findall(r"`(test_\w+)`", text))
        files = [*(ROOT / "tests" / "engine").glob("test_*.py"), *(ROOT / "tests" / "gpu").glob("test_*.py")]
        there = "".join(path.read_text(encoding="utf-8") for path in files)
        assert len(named) >= 6
        assert not [name for name in named if f"def {name}(" not in there]

    def test_what_it_says_of_how_many(self, text: str) -> None:
        plain, toy, lie = re.sub(r"\s+", " ", text), lies("toy"), LIES["own-pool"]
        assert len(LIES) == 5
        assert "shows five defects" in plain
        assert f"There are {len(toy.LETTERS)} letters" in plain
        assert f"{lie.rooms[0]} blocks of four letters on the first rank, and for {lie.rooms[1]} on the second" in plain
        assert toy.BLOCK == 4
        assert f"The hare has {LIES['own-clock'].asked[0].patience} milliseconds" in plain
        assert toy.UNSURE == "flw"

    def test_links_lead_somewhere(self, text: str) -> None:
        targets = re.findall(r"\]\(([^)#]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))
        assert targets
        assert all((CHAPTER / target).exists() for target in targets)
