"""Every exercise of every chapter: its checks catch wrong answers, in each edition, and its page's figures are true."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nanocourse.authoring import chapter_strength, strength
from nanocourse.checks.check import check_exercise
from nanocourse.checks.known_mistakes import Solve, Tells
from nanocourse.checks.runner import Workers, solver_of
from nanocourse.exercises import answers, chapters, kernels, page, sources
from nanocourse.exercises.bank import wrong_answers
from nanocourse.exercises.cases import Case
from nanocourse.exercises.exercise import Exercise, Right, Wrong
from nanocourse.exercises.outcomes import local
from nanocourse.learner import predict, quiz
from tests.course.learner_files import EXERCISES, right_file

CHAPTERS = chapters.chapters()
CPU = torch.device("cpu")
PASSED = Path(__file__).with_name("regressions.toml")

each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.id)
each_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: str(one.number))


def stored(chapter: chapters.Chapter) -> dict[str, Any]:
    """The chapter's strength, as `course strength --write` has left it."""
    found: dict[str, Any] = json.loads(chapter_strength.stored(chapter).read_text(encoding="utf-8"))
    return found


@each
@pytest.mark.strength
def test_strength_is_as_stored(exercise: Exercise) -> None:
    """The stub, the reference, variants, wrong answers and mutants, run as learners' files."""
    if why := kernels.why_not(exercise):
        pytest.skip(why)
    result = strength.measure(exercise)
    assert result.problems == []
    (own,) = (one for one in stored(chapters.chapter(exercise.chapter))["exercises"] if one["id"] == exercise.id)
    assert json.loads(json.dumps(result.to_json())) == own


@each_chapter
def test_the_three_figures_are_sums(chapter: chapters.Chapter) -> None:
    found = stored(chapter)
    assert [one["id"] for one in found["exercises"]] == [one.id for one in chapters.exercises(chapter)]
    for name, verb in chapter_strength.FIGURES.items():
        assert found[name][verb] == found[name]["of"] == sum(one[name]["of"] for one in found["exercises"])


class Judge:
    """The inputs of an exercise's checks, with what each expects."""

    def __init__(self, exercise: Exercise) -> None:
        self.exercise = exercise
        self.cases = [(one, Case(f"course/{one.name}/{at}")) for one in exercise.checks for at in range(one.cases)]
        self.expected = [exercise.expected(exercise.call(*asked)) for asked in self.cases]

    def rejects(self, solve: Solve) -> bool:
        """Whether a check tells this answer from the right one."""
        for (check, case), expected in zip(self.cases, self.expected, strict=True):
            if self.exercise.compare(check, expected, solve(self.exercise.call(check, case))):
                return True
        return False


@pytest.mark.parametrize("exercise", [e for e in EXERCISES if wrong_answers(PASSED, e.id)], ids=lambda one: one.id)
@pytest.mark.strength
def test_what_once_passed_is_rejected(exercise: Exercise) -> None:
    judge = Judge(exercise)
    with solver_of(exercise) as solver:
        for wrong in wrong_answers(PASSED, exercise.id):
            assert judge.rejects(solver(wrong)), wrong.name


@pytest.mark.parametrize("exercise", [one for one in EXERCISES if one.editions], ids=lambda one: one.id)
@pytest.mark.strength
def test_editions_are_as_strong(exercise: Exercise) -> None:
    """Right answers agree in the other form; each wrong one is told apart there, and has inputs that name it."""

    def printed(*args: Any) -> Any:
        return exercise.function(*args)  # a function of its own: scenes remember some that they have played

    for edition in (exercise.as_edition(one.name) for one in exercise.editions):
        if exercise.spec.scene is not None:  # an edition is played in the same scene, on the same inputs
            played = Judge(exercise)
            assert not played.rejects(partial(local, edition.oracle))
            assert played.rejects(partial(local, edition.staged(printed)))
            continue
        judge = Judge(edition)

        def formed(answer: Wrong | Right, edition: Exercise = edition) -> Solve:
            return partial(local, edition.known(sources.answer_function(exercise, answer)))

        assert not judge.rejects(partial(local, edition.known(exercise.function)))
        for right in exercise.right:
            assert not judge.rejects(formed(right)), right.name
        for wrong in exercise.real_wrong:
            assert judge.rejects(formed(wrong)), wrong.name
        tells = Tells(edition, "course")
        assert {name for name, found in tells.found.items() if len(found) < tells.needed} == set()


@each
def test_the_bank_is_large_enough(exercise: Exercise) -> None:
    assert len(exercise.real_wrong) >= 7
    assert len(exercise.right) >= 2
    assert len({wrong.name for wrong in exercise.wrong}) == len({wrong.says for wrong in exercise.wrong})
    assert len({wrong.name for wrong in exercise.wrong}) == len(exercise.wrong)
    assert all(exercise.equivalent.values())


@pytest.mark.parametrize(
    "part, said",
    [("# 1.1 ", "a title behind `# 1.1 `"), ("## What always holds", "a task"), ("## Hints", "invariants as a list"),
     ("<summary>Place", "the folded hint Place"), ("```text", "the folded hint Pseudocode, in a fence")],
)  # fmt: skip
def test_a_page_that_lacks_a_part_is_told(part: str, said: str, tmp_path: Path) -> None:
    text = EXERCISES[0].path.with_suffix(".md").read_text(encoding="utf-8")
    (tmp_path / "ex1.md").write_text(text.replace(part, ""), encoding="utf-8")
    with pytest.raises(ValueError, match=f"^ex1.md lacks {said}"):
        page.texts(tmp_path / "ex1.md", "1.1")


@pytest.mark.gpu
@pytest.mark.parametrize("exercise", [one for one in EXERCISES if one.chapter <= 4], ids=lambda one: one.id)
def test_the_reference_passes_on_a_gpu(exercise: Exercise, tmp_path: Path) -> None:
    path = tmp_path / exercise.file
    path.write_text(right_file(exercise), encoding="utf-8")
    with Workers("cuda") as workers:
        result = check_exercise(exercise, path, workers.take, device="cuda")
    assert result.status == "passed", result


@each_chapter
def test_wrong_options_of_a_quiz_are_known_mistakes(chapter: chapters.Chapter) -> None:
    asked = quiz.questions(chapter)
    assert len(asked) >= 8
    assert len({[option.correct for option in question.answers].index(True) for question in asked}) > 1
    for question in asked:
        assert sum(option.correct for option in question.answers) == 1
        for option in question.answers:
            assert option.answer
            assert option.feedback
            if option.mistake:
                id, name = option.mistake.split(" ")
                assert name in answers.names(id)
                assert not option.correct


# What arithmetic says to each question whose answer it can give exactly.
BOUNDS = {
    1: {"more-rows": 8},
    2: {"rows-as-weights": 3.0306},
    3: {"room": 13 * 96 / (16 * 29), "context": 8, "table": 1},
    4: {"captures": 11, "replay": 1},
    5: {"static": 104 / 40, "batch": 8, "shared": 280},
    6: {"few rows": 1, "many rows": 256, "orders": 6},
    7: {"tokens": 3.3616, "one row": 1, "many rows": 5, "lookup": 5},
    8: {"memory": 0.5, "part": 0.5, "pipe": 100, "busiest": 0},
}
COUNTED = {5: {"shared": 224}, 6: {"orders": 20}}  # and not timed, so that it is the same everywhere


@each_chapter
def test_predictions_have_the_bounds_that_arithmetic_gives(chapter: chapters.Chapter) -> None:
    found = {one.id: one for one in predict.predictions(chapter)}
    for id, bound in BOUNDS[chapter.number].items():
        assert found[id].bound(CPU) == pytest.approx(bound, rel=1e-3), id
    for prediction in found.values():
        assert all(prediction.why(1.0, measured) for measured in (0.1, 1.0, 10.0))
    for id, count in COUNTED.get(chapter.number, {}).items():
        assert found[id].measure(CPU) == count, id
