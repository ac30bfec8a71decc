"""Answers that got points without the work, as long as verdicts and journals lived beside them: they get none."""

from __future__ import annotations

import math
import sys
import textwrap
from pathlib import Path

import pytest

from nanocourse.exercises import chapters, kernels
from nanocourse.grade import mark
from nanocourse.grade.record import ExerciseGrade
from tests.course.attack_runs import ATTACKS, graded
from tests.course.learner_files import right_file

CHEATS = {path.stem: path for path in sorted((ATTACKS / "cheats").glob("*.py"))}
# What the same answers get without their cheats, too, and the check that the cheat was for.
HONEST = {"patched_amax": "blocks-of-no-numbers", "replaced_compiler": "compiles"}
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


def written_out(name: str) -> str:
    """A cheat with the kernels that it names, the right one and the slow one of the text."""
    text = CHEATS[name].read_text(encoding="utf-8")
    exercise = chapters.exercise("3.6")
    head, at, body = right_file(exercise).partition("@triton.jit")
    slow = (exercise.path.parents[1] / "small_kernel.py").read_text(encoding="utf-8").partition(at)[2]
    imports = head.replace("from __future__ import annotations\n", "")
    written = text.replace("\n# the slow kernel\n", f"\n{imports}{at}{slow.partition(chr(10) * 3)[0]}\n")
    written = written.replace("    # the right kernel\n", textwrap.indent(at + body, "    "))
    return written.replace("\n# the right kernel\n", f"\n{imports}{at}{body}\n")


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_gets_nothing(name: str, tmp_path: Path) -> None:
    source = written_out(name)
    id = source[3:6]
    if kernels.why_not(chapters.exercise(id)):
        pytest.skip("no Triton here")
    found = grade(tmp_path, id, source, 8 if id == "1.8" else 2)
    assert "the time" not in found.problem
    if name in HONEST:
        status = {check.name: check.status for check in found.checks}
        assert status[HONEST[name]] == "failed"
    else:
        assert found.points == 0


@pytest.mark.parametrize("id", ["1.8", "4.1", "4.2", "4.5", "4.6", "4.7", "4.8"])
def test_the_right_answer_gets_everything(id: str, tmp_path: Path) -> None:
    """Whose calls cross to another process and back as well."""
    found = grade(tmp_path, id, right_file(chapters.exercise(id)))
    assert found.points == found.of == 10, found
