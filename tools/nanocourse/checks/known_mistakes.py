"""Naming a mistake: the known wrong answer that a solution agrees with wherever that answer can be told from others.

For each wrong answer there are three *tells*: inputs on which it differs from the right answer and from every other
wrong one. They come from different checks if possible, and large inputs are preferred, because small ones agree by
chance. A solution that matches on all three must also match in every other check. If results are verdicts (yes or no),
one input says too little: there an input is one case of every check, and all verdicts are compared together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial

from torch import Tensor
from torch.utils._pytree import tree_leaves

from nanocourse.exercises.cases import Call, Case
from nanocourse.exercises.exercise import Check, Exercise, Wrong
from nanocourse.exercises.outcomes import Outcome, local
from nanocourse.exercises.sources import answer_function

NEEDED = 3
SEEDS = 40  # the most inputs of each check to search
LOOKED = 4  # of these always, to have a choice

Input = list[tuple[Check, Case]]
Solve = Callable[[Call], Outcome]
Tell = tuple[Input, list[Outcome]]  # an input, and a wrong answer's outcomes on it


class Tells:
    """The tells of an exercise's wrong answers, for inputs made from one seed.

    solver: how a wrong answer is called; by default in this process.
    """

    def __init__(self, exercise: Exercise, seed: str, solver: Callable[[Wrong], Solve] | None = None) -> None:
        self.exercise, self.seed = exercise, seed
        self.wrong = exercise.real_wrong
        self._solves = [(solver or self._here)(wrong) for wrong in self.wrong]

    @cached_property
    def found(self) -> dict[str, list[Tell]]:
        """For each wrong answer by name: up to three inputs, and the answer's outcomes on them."""
        tells: dict[str, list[Tell]] = {wrong.name: [] for wrong in self.wrong}
        for at in range(SEEDS):
            if at >= LOOKED and all(len(tell) >= NEEDED for tell in tells.values()):
                break
            for one in self._inputs(at):
                self._look(one, tells)
        return {name: self._varied(tell) for name, tell in tells.items()}

    def name(self, solve: Solve) -> Wrong | None:
        """The wrong answer that `solve` agrees with on all three of its tells and elsewhere, or None."""
        for wrong, known in zip(self.wrong, self._solves, strict=True):
            tells = self.found[wrong.name]
            if len(tells) == NEEDED and all(self._equals(one, outcomes, solve) for one, outcomes in tells):
                others = [one for one in self._inputs(SEEDS) if not self.exercise.call(*one[0]).compiles]
                if all(self._equals(one, self._outcomes(known, one), solve) for one in others):
                    return wrong
        return None

    def _look(self, one: Input, tells: dict[str, list[Tell]]) -> None:
        """Add an input to the tells of every wrong answer that it tells apart from the rest."""
        outcomes = [self._outcomes(solve, one) for solve in self._solves]
        right = self._outcomes(self.exercise.expected, one)
        for at, wrong in enumerate(self.wrong):
            others = [right, *outcomes[:at], *outcomes[at + 1 :]]
            if all(self._differ(one, other, outcomes[at]) for other in others):
                tells[wrong.name].append((one, outcomes[at]))

    def _varied(self, tells: list[Tell]) -> list[Tell]:
        """Choose three tells: from different checks as far as possible, the largest of each check first."""
        left, chosen = sorted(tells, key=lambda tell: -self._numbers(tell[0])), list[Tell]()
        while left and len(chosen) < NEEDED:
            used = [one[0][0].name for one, _ in chosen]
            best = min(left, key=lambda tell: used.count(tell[0][0][0].name))
            chosen.append(left.pop(next(at for at, tell in enumerate(left) if tell is best)))
        return chosen

    def _numbers(self, one: Input) -> int:
        """How many numbers an input has."""
        leaves = tree_leaves([self.exercise.call(check, case).args for check, case in one])
        return sum(leaf.numel() if isinstance(leaf, Tensor) else 1 for leaf in leaves)

    def _inputs(self, at: int) -> Iterator[Input]:
        """The inputs of one seed: one for each check, or one for all checks together if results are verdicts."""
        seeded = [(check, Case(f"{self.seed}/tells/{check.name}/{at}")) for check in self.exercise.checks]
        yield from [seeded] if self.exercise.spec.verdicts else [[pair] for pair in seeded]

    def _here(self, wrong: Wrong) -> Solve:
        """A wrong answer called in this process."""
        function = answer_function(self.exercise, wrong)
        edition = self.exercise.edition
        return partial(local, edition.of(function) if edition else self.exercise.staged(function))

    def _outcomes(self, solve: Solve, one: Input) -> list[Outcome]:
        return [solve(self.exercise.call(check, case)) for check, case in one]

    def _differ(self, one: Input, left: list[Outcome], right: list[Outcome]) -> bool:
        return any(self.exercise.compare(check, a, b) for (check, _), a, b in zip(one, left, right, strict=True))

    def _equals(self, one: Input, outcomes: list[Outcome], solve: Callable[[Call], Outcome]) -> bool:
        return not any(
            self.exercise.compare(check, outcome, solve(self.exercise.call(check, case)))
            for (check, case), outcome in zip(one, outcomes, strict=True)
        )
