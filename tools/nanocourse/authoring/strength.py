"""How strong an exercise's checks are: wrong answers caught, mutants killed, correct variants passed.

`nanoinfer course strength 1` measures chapter 1 and prints the figures and a matrix of wrong answers and checks;
`--write` stores them beside the exercises. Everything runs through the same workers as a learner's file.
"""

from __future__ import annotations

import math
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nanocourse.authoring import mutants
from nanocourse.checks.check import status_of
from nanocourse.checks.known_mistakes import Solver, Tells
from nanocourse.checks.replay import SEED
from nanocourse.checks.results import Status
from nanocourse.checks.runner import Runner, solver_of
from nanocourse.checks.worker import Kept, Worker
from nanocourse.exercises import chapters, sources, stubs
from nanocourse.exercises.cases import Case
from nanocourse.exercises.exercise import Check, Exercise, Right, Wrong
from nanocourse.exercises.outcomes import Outcome, deviation

MUTANT_LIMIT_S = 5.0  # a mutant that loops for ever is killed by this


@dataclass
class Strength:
    """What was measured of one exercise. problems: whatever is not as it should be, one sentence each."""

    id: str
    wrong: dict[str, list[str]] = field(default_factory=dict)  # name -> checks that reject it
    lessons: list[str] = field(default_factory=list)  # wrong answers that are in truth equivalent
    killed: int = 0
    equivalent: int = 0
    right: dict[str, bool] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def mutants(self) -> int:
        """The number of mutants that are mistakes."""
        return self.killed + sum("mutant survives" in problem for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        """What is stored: nothing that changes from run to run."""
        return {
            "id": self.id,
            "wrong_answers": {"caught": sum(map(bool, self.wrong.values())), "of": len(self.wrong)},
            "mutants": {"killed": self.killed, "of": self.mutants, "equivalent": self.equivalent},
            "correct_variants": {"passed": sum(self.right.values()), "of": len(self.right)},
            "lessons": self.lessons,
            "matrix": self.wrong,
        }


class AnswerRunner:
    """Runs sources as if learners had written them, one after the other in one worker."""

    def __init__(self, exercise: Exercise, folder: Path, limit_s: float) -> None:
        self.exercise, self.path, self.limit_s = exercise, folder / exercise.file, limit_s
        self._expected: dict[str, Outcome] = {}  # by the seed of the case
        self._running, self._compiling = Kept(Worker), Kept(partial(Worker, compiling=True))

    def runner(self, source: str) -> Runner:
        """A runner for this source."""
        self.path.write_text(source, encoding="utf-8")
        return Runner(self.exercise, self.path, self._running, self.limit_s, compiler=self._compiling)

    def statuses(self, source: str) -> dict[str, Status]:
        """The status of every check; after a hang the rest counts as hung."""
        runner = self.runner(source)
        if not runner.load():
            return {check.name: "failed" for check in self.exercise.checks}
        found: dict[str, Status] = {}
        for check in self.exercise.checks:
            hung = "hung" in found.values()
            found[check.name] = "hung" if hung else self._status(runner, check)
        return found

    def _status(self, runner: Runner, check: Check) -> Status:
        for at in range(check.cases):
            case = Case(f"{SEED}/{check.name}/{at}")
            if case.seed not in self._expected:
                self._expected[case.seed] = self.exercise.expected(self.exercise.call(check, case))
            got = runner.call(self.exercise.call(check, case))
            status = status_of(self.exercise, check, self._expected[case.seed], got)
            if status != "passed":
                return status
        return "passed"

    def close(self) -> None:
        """End the workers."""
        self._running.close()
        self._compiling.close()


def measure(exercise: Exercise) -> Strength:
    """The strength of one exercise's checks."""
    result = Strength(exercise.id)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(AnswerRunner(exercise, Path(folder).resolve(), exercise.spec.limit_s)) as runs,
    ):
        _stub(exercise, runs, result)
        with solver_of(exercise) as solver:
            _wrong(exercise, runs, result, solver)
            _right(exercise, runs, result)
            _gap(exercise, result, solver)
        runs.limit_s = MUTANT_LIMIT_S
        caught = _mutants(exercise, runs, result)
    _redundant(exercise, result, caught)
    return result


def _stub(exercise: Exercise, runs: AnswerRunner, result: Strength) -> None:
    """The untouched stub must fail every check."""
    source = stubs.stub(exercise, chapters.chapter(exercise.chapter))
    for name, status in runs.statuses(source).items():
        if status != "not begun":
            result.problems.append(f"the untouched stub is {status!r} in check {name}")


def _wrong(exercise: Exercise, runs: AnswerRunner, result: Strength, solver: Solver) -> None:
    """Every wrong answer must be rejected, and be told by its name."""
    tells = Tells(exercise, SEED, solver)
    for wrong in exercise.wrong:
        source = sources.answer_source(exercise, wrong)
        rejected = [name for name, status in runs.statuses(source).items() if status != "passed"]
        if wrong.lesson:
            result.lessons.append(wrong.name)
            if rejected:
                result.problems.append(f"{wrong.name} is said to be equivalent, but {rejected[0]} rejects it")
            continue
        result.wrong[wrong.name] = rejected
        if not rejected:
            result.problems.append(f"the wrong answer {wrong.name} passes all checks")
        if wrong.unnamed:
            continue
        if len(tells.found[wrong.name]) < tells.needed:
            result.problems.append(f"{wrong.name} has {len(tells.found[wrong.name])} inputs that tell it from the rest")
            continue
        runner = runs.runner(source)
        named = tells.name(runner.call)
        if named is None or named.name != wrong.name:
            result.problems.append(f"{wrong.name} is told as {named.name if named else 'no known mistake'}")


def _right(exercise: Exercise, runs: AnswerRunner, result: Strength) -> None:
    """Reference and correct variants must pass everything."""
    reference = sources.whole_file(exercise, exercise.function, sources.function_source(exercise.function))
    answers = [("reference", reference), *((r.name, sources.answer_source(exercise, r)) for r in exercise.right)]
    for name, source in answers:
        failed = [check for check, status in runs.statuses(source).items() if status != "passed"]
        if name != "reference":
            result.right[name] = not failed
        if failed:
            result.problems.append(f"the correct answer {name} is rejected by {', '.join(failed)}")


def _gap(exercise: Exercise, result: Strength, solver: Solver) -> None:
    """How far the correct variants are from the reference, and how far the nearest wrong answer is."""
    inputs = [(c, Case(f"{SEED}/{c.name}/{at}")) for c in exercise.checks for at in range(c.cases)]
    expected = [exercise.expected(exercise.call(check, case)) for check, case in inputs]

    def furthest(answer: Wrong | Right) -> float:
        solve = solver(answer)
        outcomes = [solve(exercise.call(check, case)) for check, case in inputs]
        pairs = zip(inputs, expected, outcomes, strict=True)
        return max(apart(check, one, other) for (check, _), one, other in pairs)

    def apart(check: Check, one: Outcome, other: Outcome) -> float:
        """As a share of the check's own tolerance, in the exercise's."""
        if exercise.further_entries(one, other):
            return math.inf
        size = deviation(check.looked_at(one), check.looked_at(other), exercise.spec.typed, exercise.spec.exact)
        return size * exercise.spec.tolerance / (check.tolerance or exercise.spec.tolerance)

    right, wrong = max(map(furthest, exercise.right)), min(map(furthest, exercise.real_wrong))
    tolerance = exercise.spec.tolerance
    if not (right * 4 <= tolerance and tolerance * 4 <= wrong):
        result.problems.append(
            f"tolerance {tolerance:g} must lie between {right:.2g}, the furthest right answer, and {wrong:.2g}, the "
            "nearest wrong one, by a factor of 4 at least"
        )


def _mutants(exercise: Exercise, runs: AnswerRunner, result: Strength) -> dict[str, list[str]]:
    """Every mutant must be killed or listed as equivalent; returns which checks reject which."""
    caught: dict[str, list[str]] = {}
    unknown = set(exercise.equivalent)
    for mutant in mutants.mutants(sources.function_source(exercise.function)):
        source = sources.whole_file(exercise, exercise.function, mutant.source)
        rejected = [name for name, status in runs.statuses(source).items() if status != "passed"]
        unknown.discard(mutant.name)
        if mutant.name in exercise.equivalent:
            result.equivalent += 1
            if rejected:
                result.problems.append(f"said to be equivalent, but {rejected[0]} rejects it: {mutant.name}")
        elif rejected:
            result.killed += 1
            caught[mutant.name] = rejected
        else:
            result.problems.append(f"a mutant survives: {mutant.name}")
    result.problems += [f"said to be equivalent, but there is no such mutant: {name}" for name in sorted(unknown)]
    return caught


def _redundant(exercise: Exercise, result: Strength, mutants_caught: dict[str, list[str]]) -> None:
    """Each check must catch something that no other check catches, unless that other one is wide."""
    caught = [*result.wrong.values(), *mutants_caught.values()]
    wide = {check.name: check.wide for check in exercise.checks}
    by_check = {c.name: {at for at, names in enumerate(caught) if c.name in names} for c in exercise.checks}
    for name, own in by_check.items():
        for other, more in by_check.items():
            if name != other and own <= more and not wide[other]:
                result.problems.append(f"check {name} catches nothing that {other} does not catch")
