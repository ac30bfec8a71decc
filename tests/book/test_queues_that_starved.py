"""Queues that starved: each lie lies, the right ones do not, the exercise tells them apart, the page says what runs."""

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
from nanocourse.exercises import chapters
from nanocourse.exercises.outcomes import Raised, Returned, local

ROOT = Path(__file__).parents[2]
CHAPTER = ROOT / "chapters" / "05-queue"
PAGE, FOLDER = CHAPTER / "queues-that-starved.md", CHAPTER / "lies"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="not a checkout")


def lies(name: str) -> ModuleType:
    module: ModuleType = load(FOLDER / "loading.py").lies(name)
    return module


LIES = lies("catalogue").LIES if PAGE.is_file() else {}
RIGHT = lies("catalogue").RIGHT if PAGE.is_file() else {}


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def recited(prompt: str, letters: int) -> str:
    return ((prompt.upper() if prompt[0].isupper() else prompt) * letters)[:letters]


class TestToys:
    @pytest.mark.parametrize("name", LIES)
    def test_lies(self, name: str) -> None:
        lie = LIES[name]
        assert lie.scene(lie.wrong) != lie.scene(lies("toy").Queue)

    @pytest.mark.parametrize("name", RIGHT)
    def test_right_ones_are_right_on_any_day(self, name: str) -> None:
        """Letters, budget, rows, blocks; and everything is free at the end."""
        random = Random(name)
        for _ in range(60):
            rows, blocks, budget = random.randint(1, 4), random.randint(4, 9), random.randint(3, 24)
            queue, due, came = RIGHT[name](rows, blocks, budget), {}, {}
            for now in range(400):
                if now < 40 and random.random() < 0.6:
                    prompt = (
                        random.choice(["wolf", "Wolf", "ox"]) + "hare" * random.randint(0, 2) + random.choice(["", "s"])
                    )
                    letters = random.randint(1, 4 * blocks - len(prompt))
                    due[queue.submit(prompt, letters)] = recited(prompt, letters)
                left = [number for number, whole in due.items() if came.get(number, "") != whole]
                if left and random.random() < 0.03:
                    queue.cancel(gone := random.choice(left))
                    due[gone] = came.get(gone, "")
                fed = queue.step()
                assert sum(one[1] for one in fed) <= budget
                assert len(fed) <= rows
                assert all(one[1] > 0 for one in fed)
                for number, _, new in fed:
                    came[number] = came.get(number, "") + new
                assert queue.free.count(0) <= 1
                assert len(set(queue.free)) == len(queue.free) == queue.owners.count(0)
            assert {number: came.get(number, "") for number in due} == due
            assert len(queue.free) == blocks
            assert not queue.running

    def test_each_wrong_one_is_short(self) -> None:
        for wrong in lies("catalogue").LIARS.values():
            source = Path(sys.modules[wrong.__module__].__file__ or "").read_text(encoding="utf-8")
            assert len(source.partition(f"class {wrong.__name__}(")[2].split("\n\n\n")[0].splitlines()) <= 16, wrong

    def test_names_say_nothing_twice(self) -> None:
        catalogue = lies("catalogue")
        assert len({*catalogue.RIGHT.values(), *catalogue.LIARS.values()}) == len(RIGHT) + len(catalogue.LIARS) == 16
        assert not set(RIGHT) & set(catalogue.LIARS)


class TestProgram:
    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(FOLDER), *words], capture_output=True, text=True, check=False)

    def test_plays_those_that_are_named(self) -> None:
        done = self.run("stale-map")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == "stale-map  nano-vllm#163, vllm#4761"
        assert "  wrong   clf o." in done.stdout

    def test_one_that_is_unknown_is_told(self) -> None:
        done = self.run("nobody")
        assert (done.returncode, done.stdout) == (2, "")
        assert "'nobody' is none of prompts-first" in done.stderr


class TestExercise:
    def verdict(self, kind: Any, edition: str = "") -> Any:
        exercise = chapters.exercise("5.7")
        exercise = exercise.as_edition(edition) if edition else exercise
        lent = sys.modules["nanoinfer_ch05_ex7_starved"].lent
        return local(exercise.function, exercise._formed(lent(kind)))

    @pytest.mark.parametrize("edition", ["", "live"])
    def test_tells_them_apart(self, edition: str) -> None:
        for name, kind in lies("catalogue").RIGHT.items():
            assert self.verdict(kind, edition) == Returned(None), name
        for name, kind in lies("catalogue").LIARS.items():
            found = self.verdict(kind, edition)
            assert isinstance(found, Raised), name
            assert found.kind == "AssertionError", name

    def test_every_liar_of_the_page_and_more_is_in_a_check(self) -> None:
        source = (CHAPTER / "exercises" / "ex7_starved.py").read_text(encoding="utf-8")
        liars = set(re.findall(r'"([a-z-]+)"', " ".join(re.findall(r"return liar\((.+)\)", source))))
        assert liars == set(lies("catalogue").LIARS) > set(LIES)


class TestPage:
    def test_headings_name_the_lies_in_order(self, text: str) -> None:
        assert re.findall(r"^## \d+\. .+ \(`([a-z-]+)`\)$", text, re.M) == list(LIES)
        assert [int(n) for n in re.findall(r"^## (\d+)\. ", text, re.M)] == list(range(1, len(LIES) + 3))

    def test_every_lie_is_shown_as_it_runs(self, text: str) -> None:
        shown = dict(re.findall(r'printed\("lies/shown:(\w+)"\) \]\]\]-->\n```text\n(.+?)\n```', text, re.S))
        assert list(shown) == [name.replace("-", "_") for name in LIES]
        for name, lines in shown.items():
            assert printed(FOLDER / "shown.py", name) == lines.split("\n")

    def test_every_thread_is_cited_in_its_section(self, text: str) -> None:
        sections = dict(zip(LIES, re.split(r"^## \d+\. ", text, flags=re.M)[2:], strict=False))
        for name, lie in LIES.items():
            assert len(lie.threads) >= 2
            assert all(thread in sections[name] for thread in lie.threads), name
        owners = text.partition("The owners are")[2].partition("\n\n")[0]
        assert all(thread.split("#")[0] in owners for lie in LIES.values() for thread in lie.threads)

    def test_tests_that_are_named_are_there(self, text: str) -> None:
        named = set(re.findall(r"`(test_\w+)`", text))
        there = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "engine").glob("test_*.py"))
        assert len(named) >= 5
        assert not [name for name in named if f"def {name}(" not in there]

    def test_what_it_says_of_how_many(self, text: str) -> None:
        words = {4: "four", 5: "five", 6: "six"}
        catalogue = lies("catalogue")
        assert f"shows {words[len(LIES)]} defects" in text
        assert f"the {words[len(LIES)]} of this page and {words[len(catalogue.MORE)]} that are not on it" in text
        assert f"the toy and {words[len(RIGHT) - 1]} variants" in text

    def test_links_lead_somewhere(self, text: str) -> None:
        targets = re.findall(r"\]\(([^)#]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))
        assert targets
        assert all((CHAPTER / target).exists() for target in targets)
