"""Naming a mistake: the known wrong answer that a solution agrees with wherever that answer can be told from others.

For each wrong answer there are three *tells*: inputs on which it differs from the right answer and from every other
wrong one. They come from different checks if possible, and large inputs are preferred, because small ones agree by
chance. A solution must match on all three, and first in every other check: that leaves few mistakes to find tells for,
which takes long where answers are kernels. If results are verdicts (yes or no), one input says too little: there an
input is one case of every check, and all verdicts are compared together, those of all cases at last. An answer that
always passes, or always fails, is then told by no name. Where no answer matches on all of it, `nearest` is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial

from torch import Tensor
from torch.utils._pytree import tree_leaves

from nanocourse.exercises.cases import Call, Case
from nanocourse.exercises.exercise import Check, Exercise, Right, Wrong
from nanocourse.exercises.outcomes import Outcome, Returned, local
from nanocourse.exercises.sources import answer_function

NEEDED = 3
SEEDS = 40  # the most inputs of each check to search
LOOKED = 4  # of these always, to have a choice

Input = list[tuple[Check, Case]]
Solve = Callable[[Call], Outcome]
Solver = Callable[[Wrong | Right], Solve]
Agrees = Callable[[Input, list[Outcome]], bool]
Tell = tuple[Input, list[Outcome]]  # an input, and a wrong answer's outcomes on it


def here(exercise: Exercise, answer: Wrong | Right) -> Solve:
    """A known answer, called in this process."""
    return partial(local, exercise.known(answer_function(exercise, answer)))


class Tells:
    """The tells of an exercise's wrong answers, for inputs made from one seed.

    solver: how a wrong answer is called; by default in this process.
    """

    def __init__(self, exercise: Exercise, seed: str, solver: Solver | None = None) -> None:
        self.exercise, self.seed = exercise, seed
        self.wrong = tuple(wrong for wrong in exercise.real_wrong if not wrong.unnamed)
        idle = (_passes, _fails) if exercise.spec.verdicts else ()
        self._solves: list[Solve] = [  # the wrong answers, then what is none: the right one, and those that do no work
            *map(solver or partial(here, exercise), self.wrong),
            exercise.expected,
            *(partial(local, exercise.known(answer)) for answer in idle),
        ]
        self._had: dict[tuple[int, str], Outcome] = {}  # by place in `_solves` and seed of the case
        self.needed = 1 if exercise.spec.fixed else NEEDED

    @cached_property
    def found(self) -> dict[str, list[Tell]]:
        """For each wrong answer by name: as many inputs as are needed, or fewer, and its outcomes on them."""
        return self._search(range(len(self.wrong)))

    def _search(self, sought: Iterable[int], agrees: Agrees = lambda one, own: True) -> dict[str, list[Tell]]:
        """`found` for some wrong answers, without one that does not agree where it differs from the right answer.

        Kernels run slowly: there the first inputs that do are taken.
        """
        tells: dict[int, list[Tell]] = {at: [] for at in sought}
        slow = self.exercise.spec.kernel is not None
        for seed in range(1 if self.exercise.spec.fixed else SEEDS):
            if seed >= LOOKED and all(len(tell) >= NEEDED for tell in tells.values()):
                break
            for one in self._inputs(seed):
                for at in [at for at, tell in tells.items() if not slow or len(tell) < NEEDED]:
                    self._look(one, at, tells, agrees)
        return {self.wrong[at].name: self._varied(tell) for at, tell in tells.items()}

    def name(
        self,
        solve: Solve,
        known: Mapping[str, Outcome] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> Wrong | None:
        """The wrong answer that `solve` agrees with on all three of its tells and elsewhere, or None.

        known: outcomes that are there already, by the seed of the case. say: is told what is going on.
        """
        asked = dict(known or {})

        def outcome(check: Check, case: Case) -> Outcome:
            if case.seed not in asked:  # wrong answers share inputs, and a learner's test of an engine takes seconds
                asked[case.seed] = solve(self.exercise.call(check, case))
            return asked[case.seed]

        others = [one for one in self._others() if not self.exercise.call(*one[0]).compiles]
        alike = []
        for at, wrong in enumerate(self.wrong):
            say(f"compared with known mistake {at + 1} of {len(self.wrong)}, {wrong.name}")
            if all(self._equals(one, self._outcomes(at, one), outcome) for one in others):
                alike.append(at)
        for nth, at in enumerate(alike, 1):
            say(f"agrees with {len(alike)} of them so far; looked closer at {nth}, {self.wrong[at].name}")
            found = self._search([at], lambda one, own: self._equals(one, own, outcome))
            if any(len(tells) == self.needed for tells in found.values()):
                return self.wrong[at]
        return None

    def nearest(self, solve: Solve) -> Wrong | None:
        """The wrong answer that `solve` agrees with most often where that answer shows, whatever it does elsewhere.

        Errors of its own are not counted against it. None where too few inputs speak for any; verdicts and kernels,
        which say too little or take too long, are not asked.
        """
        spec, right = self.exercise.spec, len(self.wrong)
        votes: list[list[int]] = [[] for _ in self.wrong]  # check by check
        asked = () if spec.verdicts or spec.fixed or spec.kernel else self.exercise.checks
        for check in (one for one in asked if not one.wide):
            inputs = [(check, Case(f"{self.seed}/tells/{check.name}/{seed}")) for seed in range(LOOKED)]
            got = [solve(self.exercise.call(*one)) for one in inputs]
            for at in range(len(self.wrong)):
                votes[at].append(0)
                for one, outcome in zip(inputs, got, strict=True):
                    own = self._outcomes(at, [one])
                    if self._differ([one], own, self._outcomes(right, [one])):
                        votes[at][-1] += -isinstance(outcome, Returned) if self._differ([one], own, [outcome]) else 1
        ranks = [(sum(max(vote, 0) for vote in own), sum(own)) for own in votes]
        best = max(ranks, default=(0, 0))
        return self.wrong[ranks.index(best)] if best[0] >= NEEDED else None

    def _look(self, one: Input, at: int, tells: dict[int, list[Tell]], agrees: Agrees) -> None:
        """Add an input to the tells of a wrong answer if it tells that answer apart from the rest."""
        own = self._outcomes(at, one)
        if not self._alone(one, own, range(len(self.wrong), len(self._solves))):
            return
        if not agrees(one, own):
            del tells[at]
        elif self._alone(one, own, (other for other in range(len(self.wrong)) if other != at)):
            tells[at].append((one, own))

    def _alone(self, one: Input, own: list[Outcome], others: Iterable[int]) -> bool:
        """Whether these outcomes are none of the others'."""
        return all(self._differ(one, self._outcomes(other, one), own) for other in others)

    def _varied(self, tells: list[Tell]) -> list[Tell]:
        """Choose three tells: from different checks as far as possible, the largest of each check first."""
        left, chosen = sorted(tells, key=lambda tell: -self._numbers(tell[0])), list[Tell]()
        while left and len(chosen) < self.needed:
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
        if self.exercise.spec.verdicts:
            yield self._all_cases() if self.exercise.spec.fixed else seeded
        else:
            yield from ([pair] for pair in seeded)

    def _all_cases(self) -> Input:
        checks = self.exercise.checks
        return [(check, Case(f"{self.seed}/{check.name}/{at}")) for check in checks for at in range(check.cases)]

    def _others(self) -> Iterator[Input]:
        if not self.exercise.spec.fixed:
            yield from self._inputs(SEEDS)
            yield from [self._all_cases()] * self.exercise.spec.verdicts

    def _outcomes(self, at: int, one: Input) -> list[Outcome]:
        for check, case in one:
            if (at, case.seed) not in self._had:
                self._had[at, case.seed] = self._solves[at](self.exercise.call(check, case))
        return [self._had[at, case.seed] for _, case in one]

    def _differ(self, one: Input, left: list[Outcome], right: list[Outcome]) -> bool:
        return any(self.exercise.compare(check, a, b) for (check, _), a, b in zip(one, left, right, strict=True))

    def _equals(self, one: Input, outcomes: list[Outcome], got: Callable[[Check, Case], Outcome]) -> bool:
        return not any(
            self.exercise.compare(check, outcome, got(check, case))
            for (check, case), outcome in zip(one, outcomes, strict=True)
        )


def _passes(*_: object) -> None:
    """A test that finds nothing."""


def _fails(*_: object) -> None:
    """A test that nothing passes."""
    raise AssertionError
