"""Running an exercise's checks on a learner's file, in a worker, and the receipt of it.

The parent makes the inputs and knows what is right; the worker sees inputs alone. A hang or a crash ends the worker
and costs the check in which it came; the next check gets a new worker.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from nanoinfer.course import kernels, shrinking
from nanoinfer.course.cases import Call, Case
from nanoinfer.course.chapters import resolve
from nanoinfer.course.client import Loaded, Refuse, Worker
from nanoinfer.course.exercise import Check, Exercise, Right, Wrong
from nanoinfer.course.mistakes import Solve, Tells
from nanoinfer.course.outcomes import Crashed, Hung, Outcome, Raised, Refused, show, told
from nanoinfer.course.records import CheckResult, ExerciseResult, Failure, Receipt, Status
from nanoinfer.course.sources import answer_source

SEED = "course"  # of the inputs that learners see; a grader brings its own


class Workers:
    """Workers for one device, the next one starting while the present one is busy: importing torch takes seconds.

    wanted: how many will be needed, as far as can be known; no more are started ahead.
    """

    def __init__(self, device: str, wanted: int = 1) -> None:
        self.device, self._wanted = device, wanted
        self._spare: Worker | None = None

    def take(self) -> Worker:
        """A worker of one's own, to be closed by whoever took it."""
        taken = self._spare or Worker(self.device)
        self._wanted -= 1
        self._spare = Worker(self.device) if self._wanted > 0 else None
        return taken

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._spare is not None:
            self._spare.close()


@dataclass
class Runner:
    """A learner's file of one exercise, loaded into a worker that is replaced when it dies.

    compiler: makes the worker that compiles kernels; it is started where a call asks for that.
    """

    exercise: Exercise
    path: Path
    start: Callable[[], Worker]
    limit_s: float
    problem: str = ""
    files: tuple[str, ...] = ()
    lines: frozenset[int] = frozenset()
    executed: set[int] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    printed: str = ""
    begun: bool = True
    compiler: Callable[[], Worker] = lambda: Worker(compiling=True)
    _worker: Worker | None = None
    _compiling: Worker | None = None

    def load(self) -> bool:
        """Whether the file runs and has the function; `problem` says why not."""
        self._worker = self._worker if self._worker is not None and self._worker.alive else self.start()
        found = self._load_into(self._worker)
        if isinstance(found, Loaded):
            self.files, self.lines = found.files, frozenset(found.lines)
            return True
        if found is None:
            self.problem = f"{self.path.name} has no function {self.exercise.name}"
        else:
            self.problem = f"{self.path.name} cannot be run: {told(found)}"
        self.printed = self._worker.printed()
        return False

    def _load_into(self, worker: Worker) -> Loaded | Outcome | None:
        launcher = self.exercise.spec.kernel.launcher if self.exercise.spec.kernel else None
        return worker.load(self.path, self.exercise.name, refused(self.exercise), launcher)

    def _compile(self, asked: Call) -> Outcome:
        """The outcome of compiling, in a worker of its own."""
        if self._compiling is None or not self._compiling.alive:
            self._compiling = self.compiler()
            found = self._load_into(self._compiling)
            if not isinstance(found, Loaded):
                return found or Crashed(f"{self.path.name} has no function {self.exercise.name}")
        return self._compiling.call(asked, self.limit_s)

    def call(self, asked: Call) -> Outcome:
        """The outcome of one call; loads the file again where the worker has died."""
        if asked.compiles:
            return self._compile(asked)
        if (self._worker is None or not self._worker.alive) and not self.load():
            return Crashed(self.problem)
        assert self._worker is not None
        outcome = self._worker.call(asked, self.limit_s)
        self.executed |= self._worker.seen.lines
        self.parts |= self._worker.seen.parts
        self.printed = self._worker.printed()
        return outcome

    def close(self) -> None:
        """End the workers."""
        for worker in (self._worker, self._compiling):
            if worker is not None:
                worker.close()


def refused(exercise: Exercise) -> Refuse:
    """What a solution must not call: the reference, what amounts to it, and whatever the chapter knows as an answer."""
    named = {name.replace(":", "."): resolve(name) for name in exercise.spec.refuse}
    reference = exercise.spec.reference
    told_name = reference.replace(":", ".") if isinstance(reference, str) else exercise.name
    named[told_name] = resolve(reference)
    if exercise.edition:
        named[exercise.name] = exercise.function
    codes = {name: function.__code__ for name, function in named.items() if hasattr(function, "__code__")}
    functions = tuple((code.co_filename, code.co_firstlineno, name) for name, code in codes.items())
    return Refuse(functions, (f"{exercise.path.parent}{os.sep}", f"<{exercise.id} "))


def check_exercise(
    exercise: Exercise,
    path: Path,
    start: Callable[[], Worker],
    *,
    seed: str = SEED,
    device: str = "cpu",
    name_mistakes: bool = False,
) -> ExerciseResult:
    """The result of all checks of an exercise on the file at `path`. start: makes a worker for `device`."""
    problem = kernels.why_not(exercise) if path.is_file() else f"there is no file {path.name}"
    if problem:
        return not_run(exercise, path, device, seed, problem)
    runner = Runner(exercise, path, start, exercise.spec.limit_s)
    try:
        results = [_check(runner, check, seed) for check in exercise.checks] if runner.load() else []
        failed = any(result.status in ("failed", "hung", "crashed") for result in results)
        mistake = known_mistake(runner, start, seed) if name_mistakes and _worth_naming(results) else None
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
            mistake_sought=name_mistakes and failed,
            printed=runner.printed,
        )
    finally:
        runner.close()


def not_run(exercise: Exercise, path: Path, device: str, seed: str, problem: str) -> ExerciseResult:
    """The result where there is no file, or nothing here that could run it: nothing was run."""
    receipt = Receipt((), len(exercise.checks), 0, 0, 0, 0, (), device, seed)
    return ExerciseResult(exercise.id, exercise.spec.title, path.name, (), receipt, problem=problem)


def known_mistake(runner: Runner, start: Callable[[], Worker], seed: str) -> Wrong | None:
    """The wrong answer that a learner's file equals. Wrong kernels are run in a worker too."""
    if runner.exercise.spec.kernel is None:
        return Tells(runner.exercise, seed).name(runner.call)
    with kernel_solver(runner.exercise, start) as solver:
        return Tells(runner.exercise, seed, solver).name(runner.call)


@contextmanager
def kernel_solver(exercise: Exercise, start: Callable[[], Worker]) -> Iterator[Callable[[Wrong | Right], Solve]]:
    """How answers of the bank that are kernels are called: each from a file of its own, all in two workers."""
    workers: dict[bool, Worker] = {}

    def take(compiling: bool) -> Worker:
        if compiling not in workers or not workers[compiling].alive:
            workers[compiling] = Worker(compiling=True) if compiling else start()
        return workers[compiling]

    with TemporaryDirectory() as folder:

        def solver(answer: Wrong | Right) -> Solve:
            path = Path(folder).resolve() / answer.name / exercise.file
            path.parent.mkdir(exist_ok=True)
            path.write_text(answer_source(exercise, answer), encoding="utf-8")

            def solve(asked: Call) -> Outcome:
                runner = Runner(exercise, path, lambda: take(False), exercise.spec.limit_s, compiler=lambda: take(True))
                return runner.call(asked)

            return solve

        try:
            yield solver
        finally:
            for worker in workers.values():
                worker.close()


def _worth_naming(results: list[CheckResult]) -> bool:
    return any(r.status == "failed" for r in results) and not any(r.status == "hung" for r in results)


def _check(runner: Runner, check: Check, seed: str) -> CheckResult:
    """One check over its cases, up to the first that fails."""
    exercise = runner.exercise
    for at in range(check.cases):
        case = Case(f"{seed}/{check.name}/{at}")
        expected = exercise.expected(exercise.call(check, case))
        got = runner.call(exercise.call(check, case))
        status = status_of(exercise, check, expected, got)
        if status == "failed":
            return CheckResult(check.name, check.says, status, at + 1, _failure(runner, check, case))
        if status != "passed":
            note = f"calls {got.name}, which is what the exercise asks for" if isinstance(got, Refused) else told(got)
            return CheckResult(check.name, check.says, status, at + 1, note="" if status == "not begun" else note)
    return CheckResult(check.name, check.says, "passed", check.cases)


def status_of(exercise: Exercise, check: Check, expected: Outcome, got: Outcome) -> Status:
    """What an outcome means for the check."""
    if isinstance(got, Refused):
        return "refused"
    if isinstance(got, Hung):
        return "hung"
    if isinstance(got, Crashed):
        return "crashed"
    if isinstance(got, Raised) and got.kind == "NotImplementedError" and got.message.startswith(exercise.mark):
        return "not begun"
    return "failed" if exercise.compare(check, expected, got) else "passed"


def _failure(runner: Runner, check: Check, case: Case) -> Failure:
    """The failure on the smallest input that shows it."""
    exercise = runner.exercise

    def fails(smaller: Case) -> bool:
        expected = exercise.expected(exercise.call(check, smaller))
        return status_of(exercise, check, expected, runner.call(exercise.call(check, smaller))) == "failed"

    found = shrinking.smallest(case, fails)
    asked = exercise.call(check, found)
    inputs = tuple((name, show(value)) for name, value in exercise.named(asked).items())
    expected, got = exercise.expected(asked), runner.call(exercise.call(check, found))
    where = exercise.compare(check, expected, got)
    if where is None:  # it fails now and then: state is kept between calls
        return Failure(inputs, "", told(expected), "another result at the next call with the same input")
    return Failure(inputs, where.where, where.expected, where.got, shrunk=found is not case)


def hashes(path: Path, files: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Name and SHA-256 of the learner's files."""
    named = sorted({path.name, *(Path(file).name for file in files if Path(file).parent == path.parent)})
    return tuple((name, hashlib.sha256((path.parent / name).read_bytes()).hexdigest()) for name in named)
