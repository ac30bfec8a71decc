"""How strong a released variant is: the known wrong answers on inputs drawn from its secret, in its editions.

The chapter's published figures are those of its own inputs. Other inputs could be weaker, so this is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from nanocourse.checks.known_mistakes import Solve
from nanocourse.checks.runner import kernel_solver
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import local
from nanocourse.exercises.sources import answer_function
from nanocourse.grade.assignment import Assignment
from nanocourse.grade.grade_submission import exercises_of
from nanocourse.grade.hidden_inputs import judged, questions

DRAWS = ("strength/0", "strength/1", "strength/2")


@dataclass(frozen=True)
class VariantStrength:
    """One exercise. A wrong answer counts as caught if every draw catches it; missed: the names of the others.

    refused: draws on which the right answer itself did not pass; always 0 unless an exercise is broken.
    """

    id: str
    edition: str
    caught: int
    total: int
    missed: tuple[str, ...]
    refused: int = 0


def variant_strength(
    assignment: Assignment, secret: str, submission_ids: Sequence[str] = DRAWS
) -> list[VariantStrength]:
    """How many wrong answers are caught, for each exercise. submission_ids: each one's inputs are a draw."""
    return [
        _strength(exercise, part.edition, secret, submission_ids, assignment.seeds)
        for part, exercise in exercises_of(assignment)
    ]


def _strength(exercise: Exercise, edition: str, secret: str, ids: Sequence[str], seeds: int) -> VariantStrength:
    missed: list[str] = []
    draws = [questions(exercise, secret, one, seeds) for one in ids]

    def escapes(solve: Solve) -> bool:
        return any(
            all(judged(exercise, question, solve(question.call(exercise))) == "passed" for question in draw)
            for draw in draws
        )

    if exercise.spec.kernel is None:
        for wrong in exercise.real_wrong:
            if escapes(partial(local, exercise.known(answer_function(exercise, wrong)))):
                missed.append(wrong.name)
    else:
        from nanocourse.checks.worker import Worker

        with kernel_solver(exercise, Worker) as solver:
            missed += [wrong.name for wrong in exercise.real_wrong if escapes(solver(wrong))]
    refused = sum(
        not all(judged(exercise, q, exercise.expected(q.call(exercise))) == "passed" for q in draw) for draw in draws
    )
    total = len(exercise.real_wrong)
    return VariantStrength(exercise.id, edition, total - len(missed), total, tuple(missed), refused)
