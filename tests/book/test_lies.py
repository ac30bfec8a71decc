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
from functools import cache
from random import Random
from types import ModuleType
from typing import Any

import pytest

from nanocourse.exercises import chapters
from nanocourse.exercises.outcomes import Raised, Returned, local
from tests.book.chapter_pages import FOLDERS, checkout, module

PAGES = {
    4: "graphs-that-lied", 5: "queues-that-starved", 6: "kernels-that-raced", 7: "guesses-that-lied",
    8: "ranks-that-disagreed",
}  # fmt: skip
Play = Callable[..., tuple[int, str, str]]  # exit code, output and errors of a program with these words
SAME = {"workspace", "one-part"}  # a fake graph cannot show the one; what differs of the other is the cost
OF_ITS_OWN = {"eaten-seed", "own-dice"}  # letters are drawn in another way, also without guesses or other ranks

pytestmark = checkout


def lies(chapter: int, name: str = "catalogue") -> ModuleType:
    """A module of the folder of a chapter's lies."""
    folder = "races" if chapter == 6 else "lies"
    found: ModuleType = getattr(module(chapter, f"{folder}/loading"), folder)(name)
    return found


def entries(chapter: int) -> dict[str, Any]:
    """All lies of a chapter by name; nothing where there is no checkout, as this is asked before tests are skipped."""
    if chapter not in FOLDERS:
        return {}
    found: dict[str, Any] = lies(chapter).RACES if chapter == 6 else lies(chapter).LIES
    return {name: lie for name, lie in found.items() if not getattr(lie, "gpu", False)}


@cache
def searched(name: str, side: str) -> tuple[int, int, list[str]]:
    """All interleavings of one side of a race of chapter 6."""
    found: tuple[int, int, list[str]] = getattr(entries(6)[name], side)()
    return found


def outputs(chapter: int, name: str) -> tuple[Any, Any, Any]:
    """What is true, what the right one tells, and what the wrong one tells."""
    lie = entries(chapter)[name]
    if chapter == 4:
        sides = lies(4, "running").in_this_process(name, "cpu").sides
        return sides["truth"], sides["right"], sides["wrong"]
    if chapter == 5:
        right = lie.scene(lies(5, "toy").Queue)
        return right, right, lie.scene(lie.wrong)
    if chapter == 6:
        return [], searched(name, "right")[2], searched(name, "wrong")[2]  # the shortest order of events that loses
    if chapter == 7:
        right, wrong = (lies(7).with_guesses(lie.asked, kind)[0] for kind in (lies(7, "toy").Decoder, lie.wrong))
        return lies(7).plain(lie.asked), right, wrong
    alone = (lies(8).one_rank(lie.asked, min(lie.rooms)), "")
    return [alone] * len(lie.rooms), lie.told(lies(8, "toy").Rank), lie.told(lie.wrong)


every_lie = pytest.mark.parametrize(
    "chapter, name", [(chapter, name) for chapter in PAGES for name in entries(chapter)]
)
every_page = pytest.mark.parametrize("chapter", PAGES)


@every_lie
def test_the_wrong_one_lies_and_the_right_one_does_not(chapter: int, name: str) -> None:
    truth, right, wrong = outputs(chapter, name)
    assert right == truth
    assert (wrong == truth) == (name in SAME)


@pytest.mark.parametrize("chapter, name", [(chapter, name) for chapter in (6, 7, 8) for name in entries(chapter)])
def test_one_test_finds_every_lie(chapter: int, name: str) -> None:
    lie = entries(chapter)[name]
    with pytest.raises(AssertionError):
        lies(chapter).check(searched(name, "wrong") if chapter == 6 else lie.wrong)


def test_it_passes_the_right_ones() -> None:
    lies(7).check(lies(7, "toy").Decoder)
    lies(8).check(lies(8, "toy").Rank)


@pytest.mark.parametrize("edition", ["", "live"])
def test_exercise_57_tells_queues_apart(edition: str) -> None:
    """All that the page shows, and some more."""
    exercise = chapters.exercise("5.7").as_edition(edition) if edition else chapters.exercise("5.7")

    def verdict(kind: Any) -> Any:
        return local(exercise.function, exercise._formed(sys.modules["nanoinfer_ch05_ex7_starved"].lent(kind)))

    for name, kind in lies(5).RIGHT.items():
        assert verdict(kind) == Returned(None), name
    for name, kind in lies(5).LIARS.items():
        found = verdict(kind)
        assert isinstance(found, Raised), name
        assert found.kind == "AssertionError", name


@pytest.mark.parametrize("name", sorted({*entries(7), *entries(8)} - OF_ITS_OWN))
def test_it_lies_with_guesses_or_with_other_ranks_alone(name: str) -> None:
    if name in entries(7):
        lie = entries(7)[name]
        assert lies(7).plain(lie.asked, lie.wrong) == lies(7).plain(lie.asked)
    else:
        lie = entries(8)[name]
        alone = lies(8).one_rank(lie.asked, min(lie.rooms))
        assert lies(8, "play").play(lie.wrong, lie.rooms[:1], lie.asked) == [(alone, "")]


class TestRightOnes:
    """Those of chapters 5, 7 and 8 are right on any day."""

    @pytest.mark.parametrize("name", lies(5).RIGHT if 5 in FOLDERS else [])
    def test_queues(self, name: str) -> None:
        """Letters, budget, rows, blocks; and everything is free at the end."""
        random = Random(name)
        for _ in range(60):
            rows, blocks, budget = random.randint(1, 4), random.randint(4, 9), random.randint(3, 24)
            queue, due, came = lies(5).RIGHT[name](rows, blocks, budget), {}, {}
            for now in range(400):
                if now < 40 and random.random() < 0.6:
                    prompt = random.choice(["wolf", "Wolf", "ox"]) + "hare" * random.randint(0, 2)
                    prompt += random.choice(["", "s"])
                    letters = random.randint(1, 4 * blocks - len(prompt))
                    recited = prompt.upper() if prompt[0].isupper() else prompt
                    due[queue.submit(prompt, letters)] = (recited * letters)[:letters]
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
                assert len(set(queue.free)) == len(queue.free) == queue.owners.count(0)
            assert {number: came.get(number, "") for number in due} == due
            assert len(queue.free) == blocks
            assert not queue.running

    def test_guesses(self) -> None:
        """Any text, and any drafts: right, wrong, or none. It recites its prompt, up to a stop, or gets tired."""
        toy, random = lies(7, "toy"), Random(7)
        assert toy.Decoder(toy.Asked("owl ", 11, 3)).run() == "owl owl owl"
        assert toy.Decoder(toy.Asked("owl. ", 11, 3, stop=".")).run() == "owl."
        assert toy.Decoder(toy.Asked("owl", 8, 3, tired=2)).run() == "owlowl**"

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
            assert "".join(decoder.runs) == decoder.text[len(prompt) :]

    def test_ranks(self) -> None:
        """Any texts, rooms and luck; with less room they wait, and are the same."""
        toy, play, draw = lies(8, "toy"), lies(8, "play").play, Random(7)
        assert (
            play(toy.Rank, [9, 9], [toy.Asked("owl ", 11), toy.Asked("zoo", 4)]) == [(["owl owl owl", "zooz"], "")] * 2
        )
        for luck in range(60):
            asked = [
                toy.Asked(
                    "".join(draw.choices(toy.LETTERS, k=draw.randint(1, 9))), draw.randint(1, 15),
                    draw.choice([0, 1, 2]), draw.choice([0, 0, 21, 90]),
                )
                for _ in range(draw.randint(1, 6))
            ]  # fmt: skip
            rooms = [draw.randint(6, 20) for _ in range(draw.randint(2, 4))]
            alone = [play(toy.Rank, [60], [one])[0].texts[0] for one in asked]
            assert play(toy.Rank, rooms, asked, luck) == [(alone, "")] * len(rooms)

    def test_races(self) -> None:
        """What loses on a used counter has lost in no order on a new one."""
        small, wrong = lies(6, "right").small, lies(6, "wrong")
        for kind in (wrong.SecondReplay, wrong.ResetByLast):
            assert not small.search(*small.grid(kind(), layers=1))[2]


class TestProgram:
    """`python chapters/NN-name/lies` plays those that are named."""

    @pytest.fixture
    def play(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Play:
        def run(chapter: int, *words: str) -> tuple[int, str, str]:
            folder = FOLDERS[chapter] / ("races" if chapter == 6 else "lies")
            monkeypatch.setattr(sys, "argv", [str(folder), *words, *(["--device", "cpu"] if chapter == 4 else [])])
            monkeypatch.setattr(sys, "path", list(sys.path))
            monkeypatch.delitem(sys.modules, "loading", raising=False)  # each folder has a file of that name
            with pytest.raises(SystemExit) as end:
                runpy.run_path(str(folder), run_name="__main__")
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
    def test_one_that_is_unknown_is_told(self, play: Play, chapter: int) -> None:
        code, out, err = play(chapter, "nobody")
        assert (code, out) == (2, "")
        assert "'nobody' is none of" in err

    @every_page
    def test_a_lie_that_tells_the_truth_fails(self, play: Play, monkeypatch: pytest.MonkeyPatch, chapter: int) -> None:
        name, lie = next(iter(entries(chapter).items()))
        catalogue = lies(chapter).RACES if chapter == 6 else lies(chapter).LIES
        honest = {4: {"liar": lies(4, "toy").Toy}, 6: {"wrong": getattr(lie, "right", None)}}.get(chapter)
        honest = honest or {"wrong": getattr(lies(chapter, "toy"), {5: "Queue", 7: "Decoder", 8: "Rank"}[chapter])}
        monkeypatch.setitem(catalogue, name, replace(lie, **honest))
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
