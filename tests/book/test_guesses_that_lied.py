"""Guesses that lied: each lie lies, the right decoder does not, one test tells them apart, the page says what runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from nanobook.examples import load, printed

ROOT = Path(__file__).parents[2]
CHAPTER = ROOT / "chapters" / "07-speculation"
PAGE, FOLDER = CHAPTER / "guesses-that-lied.md", CHAPTER / "lies"
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
        for k in range(6):
            assert toy.Decoder(toy.Asked("owl ", 11, k)).run() == "owl owl owl"
            assert toy.Decoder(toy.Asked("owl. ", 11, k, stop=".")).run() == "owl."
            assert toy.Decoder(toy.Asked("owl", 8, k, tired=2)).run() == "owlowl**"

    def test_with_guesses_it_is_what_it_is_without(self) -> None:
        """Any text, and any drafts: right, wrong, or none."""
        toy, random = lies("toy"), Random(7)

        class Scripted(toy.Decoder):  # type: ignore[name-defined, misc]
            def drafts(self, most: int) -> str:
                return "".join(letter if random.random() < 0.7 else "?" for letter in super().drafts(most))

        for _ in range(400):
            prompt = "".join(random.choice("abc ") for _ in range(random.randint(1, 9)))
            asked = toy.Asked(
                prompt, random.randint(1, 40), random.randint(1, 7), random.choice(["", *prompt.strip()]),
                random.choice([0, 2, 5]), random.choice([None, 1, 2]),
            )  # fmt: skip
            decoder = Scripted(asked)
            assert decoder.run() == toy.Decoder(asked._replace(k=0)).run()
            assert decoder.length == len(decoder.cache[: decoder.length]) <= len(prompt) + asked.letters
            assert "".join(decoder.runs) == decoder.text[len(prompt) :]

    def test_a_step_without_guesses_gives_a_letter(self) -> None:
        toy = lies("toy")
        decoder = toy.Decoder(toy.Asked("wolf ", 9, 0))
        decoder.run()
        assert [len(run) for run in decoder.runs] == [1] * 9


class TestLies:
    @pytest.mark.parametrize("name", LIES)
    def test_lies_with_guesses_alone(self, name: str) -> None:
        catalogue, toy, lie = lies("catalogue"), lies("toy"), LIES[name]
        assert catalogue.with_guesses(lie.asked, lie.wrong)[0] != catalogue.plain(lie.asked, lie.wrong)
        if name != "eaten-seed":  # whose letters are drawn in another way
            assert catalogue.plain(lie.asked, lie.wrong) == catalogue.plain(lie.asked, toy.Decoder)

    @pytest.mark.parametrize("name", LIES)
    def test_equality_with_plain_decoding_finds_it(self, name: str) -> None:
        catalogue = lies("catalogue")
        with pytest.raises(AssertionError, match="not"):
            catalogue.check(LIES[name].wrong)

    def test_the_right_one_passes(self) -> None:
        lies("catalogue").check(lies("toy").Decoder)

    def test_each_is_short(self) -> None:
        source = (FOLDER / "wrong.py").read_text(encoding="utf-8")
        for lie in LIES.values():
            body = source.partition(f"class {lie.wrong.__name__}(")[2].split("\n\n\n")[0]
            assert 3 <= len(body.splitlines()) <= 16


class TestProgram:
    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(FOLDER), *words], capture_output=True, text=True, check=False)

    def test_plays_those_that_are_named(self) -> None:
        done = self.run("stop-inside")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "stop-inside  transformers#47912, koboldcpp#1276",
            "  right  the wolf.",
            "  wrong  the wolf. the wolf. the ",
        ]

    def test_one_that_is_unknown_is_told(self) -> None:
        done = self.run("nobody")
        assert (done.returncode, done.stdout) == (2, "")
        assert "'nobody' is none of stop-inside" in done.stderr


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
        there = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "engine").glob("test_*.py"))
        assert len(named) >= 5
        assert not [name for name in named if f"def {name}(" not in there]

    def test_what_it_says_of_how_many(self, text: str) -> None:
        assert len(LIES) == 5
        assert "shows five defects" in text
        assert "wrong at every fourth letter" in re.sub(r"\s+", " ", text)
        assert lies("toy").WRONG == 4
        chapter = (CHAPTER / "README.md").read_text(encoding="utf-8")
        assert "Five defects of engines that people use" in chapter

    def test_links_lead_somewhere(self, text: str) -> None:
        targets = re.findall(r"\]\(([^)#]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))
        assert targets
        assert all((CHAPTER / target).exists() for target in targets)
