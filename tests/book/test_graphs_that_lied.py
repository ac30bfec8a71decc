"""Graphs that lied: deaths of processes, the marker that tells engines apart, what a GPU has measured, real graphs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.book.chapter_pages import FOLDERS, ROOT, checkout
from tests.book.test_lies import lies

FOLDER = FOLDERS[4] / "lies" if FOLDERS else Path()
MARKS = """
import json, pathlib, sys
from nanocourse.exercises.chapters import run_folder
lies = run_folder(pathlib.Path(sys.argv[1]))
marking, check = lies("marking"), lies("reference").check
names = [name for name in (*marking.RIGHT, *marking.LIARS) if name != "cold"]
print(json.dumps({name: marking.verdict(check, name, "cuda") for name in names}), flush=True)
"""

pytestmark = checkout


def test_the_story() -> None:
    """In float64 as it is told: the wrong text begins right, and the graph has everything but its attention."""
    told = lies(4, "running").in_this_process("story", "cpu")
    (true,), (right,), (wrong,) = (told.sides[side] for side in ("truth", "right", "wrong"))
    assert true == right != wrong
    assert wrong.startswith(lies(4, "story").PROMPT)
    assert lies(4, "story").attentions(lies(4, "recorders").StandIn()) == {"right": 12, "wrong": 0}


class TestProcess:
    def test_a_death_is_told(self) -> None:
        """By the side that is missing, with what the process said last; and it is never as expected on a CPU."""
        told = lies(4, "running").in_a_process_of_its_own("slot", "no device")
        assert told.sides["truth"][0].startswith("the process died: ")
        assert "no device" in told.error
        assert not told.as_expected
        assert told.verdict == "the right one lied"

    def test_a_death_when_it_is_timed_is_no_success(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All three sides came, and no cost: the story's time was missing from its results file for that."""
        running = lies(4, "running")
        sides = "".join(json.dumps({"part": side, "value": [side]}) + "\n" for side in running.SIDES)
        dead = subprocess.CompletedProcess([], 1, stdout=sides, stderr="RuntimeError: the pool is gone")
        monkeypatch.setattr(running.subprocess, "run", lambda *_, **__: dead)
        told = running.in_a_process_of_its_own("story", "cuda")
        assert told.sides == {side: [side] for side in running.SIDES}
        assert "the pool is gone" in told.error
        assert not told.as_expected

    @pytest.mark.parametrize(
        "name, changed, expected",
        [
            ("slot", {}, True), ("slot", {"wrong": ["1"]}, False),
            ("library", {"wrong": ["1"]}, True), ("library", {"right": ["0"]}, False),
        ],
    )  # fmt: skip
    def test_a_death_of_the_wrong_one_is_a_lie(self, name: str, changed: dict[str, list[str]], expected: bool) -> None:
        sides = {"truth": ["1"], "right": ["1"], "wrong": ["the process died: CUDA error"]}
        assert lies(4, "running").judged(name, "cuda", sides | {"costs": {}} | changed).as_expected == expected

    def test_what_is_written_down_can_be_read(self, tmp_path: Path) -> None:
        file = tmp_path / "a.json"
        command = [sys.executable, str(FOLDER), "slot", "one-part", "--device", "cpu", "--json", str(file)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("2 of 2 as expected\n")
        made = lies(4, "running").LiesReport.model_validate_json(file.read_bytes())
        assert [one.name for one in made.told] == ["slot", "one-part"]
        assert lies(4, "running").measured(file) is None  # a CPU's, and no real graph's


class TestMarker:
    def test_the_reference_passes_the_right_and_fails_the_liars(self) -> None:
        assert lies(4, "marking").marks(lies(4, "reference").check) == {}

    def test_a_test_that_sees_nothing_and_one_that_fails_everything(self) -> None:
        marking = lies(4, "marking")

        def never(make: Callable[..., Any]) -> None:
            raise AssertionError("I do not trust it")

        assert marking.marks(lambda make: None) == dict.fromkeys(marking.LIARS, "lies, and passes")
        assert set(marking.marks(never)) == set(marking.RIGHT)
        assert not set(marking.RIGHT) & set(marking.LIARS)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every lie by a real graph, each in a process of its own; run once, also where pytest has several workers."""
    folder = tmp_path_factory.getbasetemp()
    path = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "lies.json"
    with FileLock(path.with_suffix(".lock")):
        if not path.is_file():
            command = [sys.executable, str(FOLDER), "--device", "cuda", "--json", str(path)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
            print(done.stdout, done.stderr[-3000:], sep="\n")
    return {one["name"]: one for one in json.loads(path.read_text(encoding="utf-8"))["told"]}


@pytest.mark.gpu
class TestGraphs:
    @pytest.mark.parametrize("name", lies(4, "running").names("cuda") if FOLDERS else [])
    def test_lies(self, told: dict[str, Any], name: str) -> None:
        assert told[name]["sides"]["right"] == told[name]["sides"]["truth"], told[name]
        assert told[name]["as_expected"], told[name]

    def test_the_reference(self) -> None:
        """In a process of its own, and without the liar whose capture fails: it would end all further captures."""
        command = [sys.executable, "-c", MARKS, str(FOLDER)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
        found = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(found, indent=1), done.stderr[-3000:], sep="\n")
        assert {name: found[name] for name in lies(4, "marking").RIGHT} == dict.fromkeys(lies(4, "marking").RIGHT, "")
        assert all(found[name] for name in lies(4, "marking").LIARS if name != "cold")
