"""How strong a released variant is: the known wrong answers on inputs drawn from its secret, in its editions.

The chapter's published figures are those of its own inputs. Other inputs could be weaker, so this is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nanocourse.checks.runner import solver_of
from nanocourse.exercises.exercise import Exercise
from nanocourse.grade.assignment import Assignment
from nanocourse.grade.grade_submission import exercises_of
from nanocourse.grade.hidden_inputs import Question, agrees, questions

DRAWS = ("strength/0", "strength/1", "strength/2")


@dataclass(frozen=True)
class VariantStrength:
    """One exercise. A wrong answer counts as caught if every draw catches it; missed: the names of the others."""

    id: str
    edition: str
    caught: int
    total: int
    missed: tuple[str, ...]


def variant_strength(
    assignment: Assignment, secret: str, submission_ids: Sequence[str] = DRAWS
) -> list[VariantStrength]:
    """How many wrong answers are caught, for each exercise. submission_ids: each one's inputs are a draw."""
    found = []
    for part, exercise in exercises_of(assignment):
        draws = [questions(exercise, secret, one, assignment.seeds) for one in submission_ids]
        missed, total = tuple(_missed(exercise, draws)), len(exercise.real_wrong)
        found.append(VariantStrength(exercise.id, part.edition, total - len(missed), total, missed))
    return found


def _missed(exercise: Exercise, draws: Sequence[Sequence[Question]]) -> Iterator[str]:
    """The wrong answers that pass on all inputs of a draw."""
    with solver_of(exercise) as solver:
        for wrong in exercise.real_wrong:
            solve = solver(wrong)
            if any(agrees(exercise, draw, solve) for draw in draws):
                yield wrong.name
