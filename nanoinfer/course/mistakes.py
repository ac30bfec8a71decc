"""The mistake by its name: a solution that equals a known wrong answer wherever that one tells itself apart.

A wrong answer's *tells* are three inputs on which it differs from the right answer and from every other wrong one.
Where results are verdicts, yes or no, one input is not enough to tell anything: there an input is one case of every
check, and what is compared is all verdicts together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial

from nanoinfer.course.cases import Call, Case
from nanoinfer.course.exercise import Check, Exercise, Wrong
from nanoinfer.course.outcomes import Outcome, local
from nanoinfer.course.sources import answer_function

NEEDED = 3
SEEDS = 40  # inputs of each check that are looked through

Input = list[tuple[Check, Case]]
Solve = Callable[[Call], Outcome]


class Tells:
    """The tells of an exercise's wrong answers, for inputs made from one seed.

    solver: how a wrong answer is called; in this process unless given.
    """

    def __init__(self, exercise: Exercise, seed: str, solver: Callable[[Wrong], Solve] | None = None) -> None:
        self.exercise, self.seed = exercise, seed
        self.wrong = exercise.real_wrong
        self._solves = [(solver or self._here)(wrong) for wrong in self.wrong]

    @cached_property
    def found(self) -> dict[str, list[tuple[Input, list[Outcome]]]]:
        """Of each wrong answer by name: up to three inputs, and what it makes of them."""
        tells: dict[str, list[tuple[Input, list[Outcome]]]] = {wrong.name: [] for wrong in self.wrong}
        for one in self._inputs():
            if all(len(tell) == NEEDED for tell in tells.values()):
                break
            outcomes = [self._outcomes(solve, one) for solve in self._solves]
            right = self._outcomes(self.exercise.expected, one)
            for at, wrong in enumerate(self.wrong):
                others = [right, *outcomes[:at], *outcomes[at + 1 :]]
                if len(tells[wrong.name]) < NEEDED and all(self._differ(one, o, outcomes[at]) for o in others):
                    tells[wrong.name].append((one, outcomes[at]))
        return tells

    def name(self, solve: Callable[[Call], Outcome]) -> Wrong | None:
        """The wrong answer that `solve` equals on all three of its tells; None where it equals none."""
        for wrong in self.wrong:
            tells = self.found[wrong.name]
            if len(tells) == NEEDED and all(self._equals(one, outcomes, solve) for one, outcomes in tells):
                return wrong
        return None

    def _inputs(self) -> Iterator[Input]:
        for at in range(SEEDS):
            seeded = [(check, Case(f"{self.seed}/tells/{check.name}/{at}")) for check in self.exercise.checks]
            yield from [seeded] if self.exercise.spec.verdicts else [[pair] for pair in seeded]

    def _here(self, wrong: Wrong) -> Solve:
        """A wrong answer called in this process."""
        function = answer_function(self.exercise, wrong)
        return partial(local, self.exercise.edition.of(function) if self.exercise.edition else function)

    def _outcomes(self, solve: Solve, one: Input) -> list[Outcome]:
        return [solve(self.exercise.call(check, case)) for check, case in one]

    def _differ(self, one: Input, left: list[Outcome], right: list[Outcome]) -> bool:
        return any(self.exercise.compare(check, a, b) for (check, _), a, b in zip(one, left, right, strict=True))

    def _equals(self, one: Input, outcomes: list[Outcome], solve: Callable[[Call], Outcome]) -> bool:
        return not any(
            self.exercise.compare(check, outcome, solve(self.exercise.call(check, case)))
            for (check, case), outcome in zip(one, outcomes, strict=True)
        )
