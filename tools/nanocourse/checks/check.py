"""Running an exercise's checks on a learner's file in a worker process, with a receipt of what was run.

The parent makes the inputs and knows what is right; the worker sees only inputs. A crash ends the worker and costs only
the check in which it happened: the next check gets a new worker. A hang ends the exercise's check. The simple checks
come first, and only the first that fails is shrunk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanocourse.checks import shrink as shrinking
from nanocourse.checks.known_mistakes import Tells
from nanocourse.checks.replay import SEED, name_of
from nanocourse.checks.results import CheckResult, ExerciseResult, Failure, Receipt, Status
from nanocourse.checks.runner import Runner, solver_of
from nanocourse.checks.worker import Worker
from nanocourse.exercises import kernels, stubs
from nanocourse.exercises.cases import Call, Case
from nanocourse.exercises.exercise import Check, Exercise, Wrong
from nanocourse.exercises.outcomes import Crashed, Difference, Hung, Outcome, Raised, Refused, in_full, show, told

STRIDED = "tensors are parts of larger ones, as x[1::2, 1::2].T is: their numbers do not lie end to end in memory"
CALLS = 12  # of a lent function that a failure shows


def check_exercise(
    exercise: Exercise,
    path: Path,
    start: Callable[[], Worker],
    *,
    seed: str = SEED,
    device: str = "cpu",
    name_mistakes: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> ExerciseResult:
    """The result of all checks of an exercise on the file at `path`. start: makes a worker for `device`.

    seed: of inputs that are a learner's own; those that all have, on which the checks were measured, come after them.
    say: is told what is going on.
    """
    missing = f"there is no file {path.name}: `nanoinfer course start {exercise.chapter}` writes its stub"
    problem = kernels.why_not(exercise) if path.is_file() else missing
    if problem:
        return not_run(exercise, path, device, seed, problem)
    if stubs.untouched(exercise, path):  # no worker has to be started for it
        undone = tuple(CheckResult(check.name, check.says, "not begun", 0) for check in exercise.checks)
        return replace(not_run(exercise, path, device, seed, ""), checks=undone)
    runner = Runner(exercise, path, start, exercise.spec.limit_s, say=say)
    try:
        seen: dict[str, Outcome] = {}
        results: list[CheckResult] = []
        simple_first = sorted(exercise.checks, key=lambda check: check.wide)
        for at, check in enumerate(simple_first if runner.load() else (), 1):
            runner.tell(f"{exercise.id}: check {at} of {len(exercise.checks)}, {check.name}")
            first = all(result.failure is None for result in results)
            results.append(_check(runner, check, seed, seen, shrink=first))
            if results[-1].status == "hung":
                break
        mistake, close = None, False
        if name_mistakes and _worth_naming(results):
            mistake, close = known_mistake(runner, start, SEED, seen, runner.tell)
        run = sum(result.status != "not run" for result in results)
        receipt = Receipt(
            files=hashes(path, runner.files), registered=len(exercise.checks), collected=len(results), run=run,
            lines_run=len(runner.executed & runner.lines), lines=len(runner.lines),
            reference_parts=tuple(sorted(runner.parts)), device=device, seed=seed,
            edition=exercise.edition.name if exercise.edition else "",
        )  # fmt: skip
        return ExerciseResult(
            exercise.id,
            exercise.spec.title,
            path.name,
            tuple(results),
            receipt,
            problem=runner.problem if not results else "",
            mistake=(mistake.name, mistake.says) if mistake else None,
            close=close,
            printed=runner.printed,
            on_input=runner.on_input,
        )
    finally:
        runner.close()


def not_run(exercise: Exercise, path: Path, device: str, seed: str, problem: str) -> ExerciseResult:
    """The result if there is no file, or if nothing on this machine can run it."""
    receipt = Receipt((), len(exercise.checks), 0, 0, 0, 0, (), device, seed)
    return ExerciseResult(exercise.id, exercise.spec.title, path.name, (), receipt, problem=problem)


def known_mistake(
    runner: Runner,
    start: Callable[[], Worker],
    seed: str,
    seen: dict[str, Outcome],
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Wrong | None, bool]:
    """The known wrong answer that behaves like the learner's file, or else the nearest, and whether it is only that.

    Wrong kernels run in a worker too.
    """
    with solver_of(runner.exercise, start) as solver:
        tells = Tells(runner.exercise, seed, solver)
        found = tells.name(runner.call, seen, say)
        return found or tells.nearest(runner.call), found is None


def _worth_naming(results: list[CheckResult]) -> bool:
    return any(r.status == "failed" for r in results) and not any(r.status == "hung" for r in results)


def _check(runner: Runner, check: Check, seed: str, seen: dict[str, Outcome], shrink: bool) -> CheckResult:
    """Run one check on its cases, up to the first that fails. seen: takes the outcomes of fixed inputs."""
    exercise = runner.exercise
    seeds = (SEED,) if exercise.spec.fixed else dict.fromkeys((seed, SEED))
    cases = [Case(f"{one}/{check.name}/{at}") for one in seeds for at in range(check.cases)]
    for at, case in enumerate(cases):
        expected = exercise.expected(exercise.call(check, case))
        got = runner.call(exercise.call(check, case))
        if exercise.spec.fixed:
            seen[case.seed] = got
        status = status_of(exercise, check, expected, got)
        if status == "failed":
            return CheckResult(check.name, check.says, status, at + 1, _failure(runner, check, case, got, shrink))
        if status != "passed":
            note = f"calls {got.name}, which is what the exercise asks for" if isinstance(got, Refused) else told(got)
            return CheckResult(check.name, check.says, status, at + 1, note="" if status == "not begun" else note)
    return CheckResult(check.name, check.says, "passed", len(cases))


def status_of(exercise: Exercise, check: Check, expected: Outcome, got: Outcome) -> Status:
    """The status of a check, given the expected and the actual outcome of one case."""
    if isinstance(got, Refused):
        return "refused"
    if isinstance(got, Hung):
        return "hung"
    if isinstance(got, Crashed):
        return "crashed"
    if isinstance(got, Raised) and got.kind == "NotImplementedError" and got.message == exercise.undone:
        return "not begun"
    return "failed" if exercise.compare(check, expected, got) else "passed"


def _failure(runner: Runner, check: Check, case: Case, got: Outcome, shrink: bool) -> Failure:
    """The failure, on the smallest input that shows it, if that is wanted."""
    exercise = runner.exercise
    if exercise.spec.fixed or not shrink:  # there is no smaller fixed one, and another call would say the same
        if shrink and runner.printed:
            runner.call(exercise.call(check, case), shown=True)
        asked = exercise.call(check, case)
        expected, inputs = exercise.expected(asked), shown_input(exercise, asked)
        at = exercise.compare(check, expected, got) or Difference("", told(expected), told(got), 0.0)
        return Failure(inputs, at.where, at.expected, at.got, again=name_of(exercise, case))

    def fails(smaller: Case) -> bool:
        expected = exercise.expected(exercise.call(check, smaller))
        return status_of(exercise, check, expected, runner.call(exercise.call(check, smaller))) == "failed"

    found = shrinking.smallest(case, fails)
    asked = exercise.call(check, found)
    end_to_end = runner.call(replace(exercise.call(check, found), strided=())) if asked.strided else None
    expected, got = exercise.expected(asked), runner.call(exercise.call(check, found), shown=True)
    if end_to_end and not exercise.compare(check, expected, end_to_end):
        asked = replace(asked, about=STRIDED)
    inputs = shown_input(exercise, asked)  # with what the right answer has asked of a lent function
    where = exercise.compare(check, expected, got)
    if where is None:  # it fails only sometimes: state is kept between calls
        again = "another result at the next call with the same input"
        return Failure(inputs, "", told(expected), again, again=name_of(exercise, found))
    shrunk = found is not case
    return Failure(inputs, where.where, where.expected, where.got, shrunk, name_of(exercise, found))


def shown_input(exercise: Exercise, asked: Call) -> tuple[tuple[str, str], ...]:
    """Name and value of each argument, as text; without a name what is said of the input as a whole."""
    about = (("", asked.about),) if asked.about else ()
    return (*(pair for name, value in exercise.named(asked).items() for pair in _shown(name, value)), *about)


def _shown(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """An argument as a failure shows it; a callable with a `gives` attribute as the values it returns (see `Call`)."""
    if not callable(value):
        yield name, in_full(value)
        return
    for arguments, given in list(getattr(value, "gives", ()))[:CALLS]:
        yield f"{name}({', '.join(map(in_full, arguments))})", show(given)


def hashes(path: Path, files: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Name and SHA-256 of the learner's files."""
    named = sorted({path.name, *(Path(file).name for file in files if Path(file).parent == path.parent)})
    return tuple((name, hashlib.sha256((path.parent / name).read_bytes()).hexdigest()) for name in named)
