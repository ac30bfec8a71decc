"""Marks one exercise of one submission: asks the hidden questions, in workers that are replaced when they die."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nanocourse.checks.known_mistakes import Tells
from nanocourse.checks.results import Status
from nanocourse.checks.runner import refused
from nanocourse.checks.worker import NOTHING, Loaded
from nanocourse.exercises import chapters, kernels
from nanocourse.exercises.cases import Call
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import Crashed, Hung, Outcome, told
from nanocourse.grade.collect import Collected, beside, printable
from nanocourse.grade.graded_worker import GradedWorker, Pool, Unconfined
from nanocourse.grade.hidden_inputs import Question, judged, worthless
from nanocourse.grade.record import ExerciseGrade
from nanocourse.grade.workspace import Workspace

NAMING_S = 60.0  # of the submission's time must be left for looking up which mistake it is


class Ended(Exception):
    """Nothing more can be asked about an exercise; the message says why."""


@dataclass
class Budget:
    """The remaining time. until: the end of the submission's, by the monotonic clock.

    check_s: for one check, of the student's process: its processor time and its sleep.
    """

    until: float
    check_s: float
    used: dict[str, float] = field(default_factory=dict)

    def left(self, check: str) -> float:
        """Seconds that the next call of a check may take."""
        return min(self.until - time.monotonic(), self.check_s - self.used.get(check, 0.0))


@dataclass
class Marking:
    """One exercise. seed: of the inputs by which mistakes are recognised. grade: with no points yet."""

    exercise: Exercise
    workspace: Workspace
    pool: Pool
    budget: Budget
    seed: str
    grade: ExerciseGrade
    _path: Path = Path()
    _worker: GradedWorker | None = None
    _loaded: bool = False
    _kept: dict[str, Any] = field(default_factory=dict)  # by scenes, of this answer
    _status: dict[str, Status] = field(default_factory=dict)

    def run(self, found: Collected, asked: list[Question]) -> Iterator[ExerciseGrade]:
        """The exercise's grade, after each check that is decided, and as it ends."""
        path = found.find(self.exercise.file, chapters.chapter(self.exercise.chapter).folder.name)
        if path is None:
            yield replace(self.grade, problem=f"there is no file {self.exercise.file}")
            return
        source = found.files[path]
        self.grade = replace(self.grade, file=printable(str(path)), sha256=hashlib.sha256(source).hexdigest())
        self._path = self.workspace.stage(self.exercise, _utf8(source), beside(found, path))
        self.budget.used.clear()
        # A worker either compiles or computes: one kind of question comes first, so that there is one change.
        if self.exercise.spec.kernel is not None:
            asked = sorted(asked, key=lambda one: one.call(self.exercise).compiles)
        left, problem = Counter(one.check.name for one in asked), ""
        try:
            for question in asked:
                name, decided = question.check.name, len(self._status)
                self._ask(question)
                left[name] -= 1
                if not left[name]:
                    self._status.setdefault(name, "passed")
                if len(self._status) > decided:
                    yield self._scored()
            self._apart(asked)
        except Ended as ended:
            problem = str(ended)
        yield self._settled(asked, problem)

    def _settled(self, asked: list[Question], problem: str) -> ExerciseGrade:
        """The grade as it ends: no points for an answer that does no work; a mistake by its name."""
        grade = replace(self._scored(), problem=printable(problem))
        if len(self._passed) < len(self.exercise.checks) and worthless(self.exercise, self._passed, asked):
            nothing = tuple(replace(check, points=0.0) for check in grade.checks)
            grade = replace(grade, checks=nothing, note="an answer that does no work passes these checks too")
        return replace(grade, mistake=self._mistake()) if "failed" in self._status.values() else grade

    @property
    def _passed(self) -> set[str]:
        return {name for name, status in self._status.items() if status == "passed"}

    def _apart(self, asked: list[Question]) -> None:
        """Ask again what passed, in a new process, where a scene has noted what several programs did beside each other.

        The scene then plays one of them among recordings of the others, which it cannot know but by their messages.
        """
        if not self._kept.get("launches"):
            return
        passed = self._passed
        self._status = {name: status for name, status in self._status.items() if name not in passed}
        self._worker, self._kept["apart"] = None, True
        try:
            for question in dict.fromkeys(asked):  # each launch once, or two of its ranks would meet
                self._ask(question)
        finally:
            self._kept["apart"] = False
        for name in passed:
            self._status.setdefault(name, "passed")

    def _scored(self) -> ExerciseGrade:
        """The grade, as far as checks are decided."""
        checks = []
        for check in self.grade.checks:
            status = self._status.get(check.name, "not run")
            checks.append(replace(check, status=status, points=check.of if status == "passed" else 0.0))
        return replace(self.grade, checks=tuple(checks))

    def _ask(self, question: Question) -> None:
        """Ask once, unless the check is decided."""
        name = question.check.name
        if name in self._status:
            return
        asked = question.call(self.exercise)
        if self.budget.until <= time.monotonic():
            raise Ended("the time for the whole submission is over")
        worker = self._ready(asked.compiles)
        allowed = min(self.exercise.spec.limit_s, self.budget.left(name))
        got: Outcome = Hung(self.budget.check_s)
        if allowed > 0:
            self._kept["question"] = question
            got = self._called(worker, asked, allowed)
            self._kept["question"] = None
            self.budget.used[name] = self.budget.used.get(name, 0.0) + worker.spent
        status = judged(self.exercise, question, got)
        if status != "passed":
            self._status[name] = status

    def _ready(self, compiling: bool) -> GradedWorker:
        """A worker that has read the file."""
        if self._worker is not None and self._worker.alive and self._worker.compiling == compiling:
            return self._worker
        if why_not := kernels.why_not(self.exercise):
            raise Ended(why_not)
        policy = self.workspace.for_exercise(self.exercise, self._path, compiling)
        self._worker, missing = self.pool.take(policy, compiling)
        if not set(missing) <= self.workspace.lacking:
            raise Unconfined(f"a worker lacks what the probe had found: {missing}")
        launcher = self.exercise.spec.kernel.launcher if self.exercise.spec.kernel else None
        refuse = refused(self.exercise) if policy.watched else NOTHING
        got = self._worker.load(self._path, self.exercise.name, refuse, launcher, False)
        if isinstance(got, Loaded):
            self._loaded = True
            return self._worker
        if self._loaded:  # it has seen hidden inputs, so none of its messages is passed on
            raise Ended("it could be read once, and not again after a worker had ended")
        if got is None:
            raise Ended(f"{self._path.name} has no function {self.exercise.name}")
        raise Ended(f"{self._path.name} cannot be run: {told(got)}")

    def _mistake(self) -> str:
        """The name of the known wrong answer that it matches; empty if there is none or time is short."""
        busy = any(status in ("hung", "crashed") for status in self._status.values())
        if busy or self.exercise.spec.kernel is not None or self.budget.until - time.monotonic() < NAMING_S:
            return ""
        found = Tells(self.exercise, self.seed).name(self._solve)
        return found.name if found else ""

    def _solve(self, asked: Call) -> Outcome:
        try:
            return self._called(self._ready(asked.compiles), asked, min(2.0, self.exercise.spec.limit_s))
        except Ended as ended:
            return Crashed(str(ended))

    def _called(self, worker: GradedWorker, asked: Call, limit_s: float) -> Outcome:
        """The outcome of one call, or of a scene."""
        scene = self.exercise.spec.scene
        return worker.play(scene, asked, limit_s, self._kept) if scene else worker.call(asked, limit_s)


def _utf8(source: bytes) -> bytes:
    """A file as Python can read it: what Windows editors call "Unicode" is UTF-16."""
    if source.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return source.decode("utf-16").encode()
        except UnicodeDecodeError:
            return source
    return source
