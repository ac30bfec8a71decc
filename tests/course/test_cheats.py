"""Answers that got points without the work, as long as verdicts and journals lived beside them: they get none."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from nanocourse.exercises import chapters, kernels, sources
from nanocourse.grade import mark
from tests.course.attack_runs import ATTACKS, graded

CHEATS = ATTACKS / "cheats"
# What the same answers get without their cheats, too, and the check that the cheat was for.
HONEST = {"patched_amax": "blocks-of-no-numbers", "replaced_compiler": "compiles"}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="work is isolated on Linux alone")


def _id(path: Path) -> str:
    return path.read_text(encoding="utf-8")[3:6]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(path.stem for path in CHEATS.glob("*.py")))
def test_a_cheat_gets_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark, "NAMING_S", math.inf)  # it is none of the known mistakes
    source = CHEATS / f"{name}.py"
    exercise = chapters.exercise(_id(source))
    if kernels.why_not(exercise):
        pytest.skip("no Triton here")
    (tmp_path / exercise.file).write_bytes(source.read_bytes())
    record = graded(tmp_path, exercise.id, seeds=8 if exercise.id == "1.8" else 2, patience=10.0)
    (grade,) = record.exercises
    assert record.complete
    assert "the time" not in grade.problem
    if name in HONEST:
        status = {check.name: check.status for check in grade.checks}
        assert status[HONEST[name]] == "failed"
    else:
        assert grade.points == 0


def test_every_exercise_that_was_cheated_is_there() -> None:
    assert len(list(CHEATS.glob("*.py"))) == 13
    assert {_id(path) for path in CHEATS.glob("*.py")} == {"1.8", "3.6", "4.1", "4.5", "4.6", "4.7", "4.8"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("id", ["1.8", "4.1", "4.2", "4.5", "4.6", "4.7", "4.8"])
def test_the_right_answer_gets_everything(id: str, tmp_path: Path) -> None:
    """Whose calls cross to another process and back as well."""
    exercise = chapters.exercise(id)
    source = sources.whole_file(exercise, exercise.function, sources.function_source(exercise.function))
    (tmp_path / exercise.file).write_text(source, encoding="utf-8")
    record = graded(tmp_path, id, seeds=2, patience=10.0)
    assert record.points == record.of == 10, record.exercises
