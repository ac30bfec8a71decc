"""Answers that got points without the work, as long as verdicts and journals lived beside them: they get none."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from nanocourse.exercises import chapters
from nanocourse.grade import mark
from nanocourse.grade.record import ExerciseGrade
from tests.course.attack_runs import ATTACKS, TABLE, exercise_of, graded
from tests.course.learner_files import right_file

CHEATS = {path.stem: path for path in sorted((ATTACKS / "cheats").glob("*.py"))}
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="work is isolated on Linux alone"),
    pytest.mark.timeout(900),
]


@pytest.fixture(autouse=True)
def no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark, "NAMING_S", math.inf)  # a cheat is none of the known mistakes


def grade(folder: Path, id: str, source: str, seeds: int = 2) -> ExerciseGrade:
    (folder / chapters.exercise(id).file).write_text(source, encoding="utf-8")
    record = graded(folder, id, seeds=seeds)
    assert record.complete
    (found,) = record.exercises
    return found


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_gets_nothing(name: str, tmp_path: Path) -> None:
    source = CHEATS[name].read_text(encoding="utf-8")
    found = grade(tmp_path, source[3:6], source, 8 if source[3:6] == "1.8" else 2)
    assert "the time" not in found.problem
    if name == "patched_amax":  # whose answer gets some without its cheat, too
        assert {check.name: check.status for check in found.checks}["blocks-of-no-numbers"] == "failed"
    else:
        assert found.points == 0


@pytest.mark.parametrize("name", [name for name, (end, _) in TABLE.items() if end in ("graded", "dropped")])
def test_an_answer_without_work_gets_no_points(name: str, tmp_path: Path) -> None:
    """One that remembers is right where a shape comes for the first time; shapes come again."""
    source = (ATTACKS / f"{name}.py").read_text(encoding="utf-8")
    found = grade(tmp_path, exercise_of(name).id, source, 1 if name == "always_raises" else 8)
    passed = [check.name for check in found.checks if check.status == "passed"]
    assert (found.note != "") == (name == "always_raises")
    assert passed in ([], ["in-order"]) if name == "remembers" else found.points == 0
    assert "HIDDEN" not in str(found)


@pytest.mark.parametrize("id", ["1.8", "4.1", "4.2", "4.5", "4.6", "4.7", "4.8", "5.7", "8.2", "8.3", "8.4"])
def test_the_right_answer_gets_everything(id: str, tmp_path: Path) -> None:
    """Whose calls cross to another process and back as well."""
    found = grade(tmp_path, id, right_file(chapters.exercise(id)))
    assert found.points == found.of == 10, found
