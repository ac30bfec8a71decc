"""The mistake by its name: a solution that equals a known wrong answer wherever that one tells itself apart.

A wrong answer's *tells* are three inputs on which it differs from the right answer and from every other wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from nanoinfer.course.cases import Call, Case
from nanoinfer.course.exercise import Check, Exercise, Wrong
from nanoinfer.course.outcomes import Outcome, difference, local
from nanoinfer.course.sources import answer_function

NEEDED = 3
SEEDS = 40  # inputs of each check that are looked through


class Tells:
    """The tells of an exercise's wrong answers, for inputs made from one seed."""

    def __init__(self, exercise: Exercise, seed: str) -> None:
        self.exercise, self.seed = exercise, seed
        self.wrong = exercise.real_wrong
        adapt = exercise.edition.of if exercise.edition else lambda answer: answer
        self._functions = [adapt(answer_function(exercise, wrong)) for wrong in self.wrong]

    @cached_property
    def found(self) -> dict[str, list[tuple[Check, Case, Outcome]]]:
        """Of each wrong answer by name: up to three inputs, and what it makes of them."""
        tells: dict[str, list[tuple[Check, Case, Outcome]]] = {wrong.name: [] for wrong in self.wrong}
        for check, case in self._inputs():
            if all(len(tell) == NEEDED for tell in tells.values()):
                break
            outcomes = [local(function, self.exercise.call(check, case)) for function in self._functions]
            right = local(self.exercise.function, self.exercise.call(check, case))
            for at, wrong in enumerate(self.wrong):
                others = [right, *outcomes[:at], *outcomes[at + 1 :]]
                if len(tells[wrong.name]) < NEEDED and all(self._differ(other, outcomes[at]) for other in others):
                    tells[wrong.name].append((check, case, outcomes[at]))
        return tells

    def name(self, solve: Callable[[Call], Outcome]) -> Wrong | None:
        """The wrong answer that `solve` equals on all three of its tells; None where it equals none."""
        for wrong in self.wrong:
            tells = self.found[wrong.name]
            if len(tells) == NEEDED and all(
                not self._differ(outcome, solve(self.exercise.call(check, case))) for check, case, outcome in tells
            ):
                return wrong
        return None

    def _inputs(self) -> Iterator[tuple[Check, Case]]:
        for at in range(SEEDS):
            for check in self.exercise.checks:
                yield check, Case(f"{self.seed}/tells/{check.name}/{at}")

    def _differ(self, one: Outcome, other: Outcome) -> bool:
        return difference(one, other, self.exercise.spec.tolerance) is not None
