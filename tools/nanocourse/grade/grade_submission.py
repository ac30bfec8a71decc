"""Grading one submission: collect files, stage them, ask workers, compare, record. The parent decides everything.

A check passes if every input of every seed agrees. What a worker says about itself decides nothing: it runs the
student's code, which may have rewritten all of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from nanocourse.exercises import chapters
from nanocourse.exercises.exercise import Exercise
from nanocourse.grade.assignment import Assignment, Part, inputs_seed, secret_mark
from nanocourse.grade.collect import Collected, beside, collect, printable
from nanocourse.grade.graded_worker import Pool, Unconfined
from nanocourse.grade.isolation import system
from nanocourse.grade.isolation.confine import LAYERS
from nanocourse.grade.mark import Budget, Marking
from nanocourse.grade.record import CheckGrade, ExerciseGrade, GradeRecord, Isolation
from nanocourse.grade.workspace import Workspace
from nanoinfer import __version__

Said = Callable[[GradeRecord], None]
REMEDY = "grade in the release's container, or with --trust-students"


class NotIsolated(Exception):
    """A layer of isolation is missing and all were required; the message is one sentence."""


@dataclass(frozen=True)
class Secret:
    """What only the grader knows; its repr reveals nothing."""

    text: str

    def __repr__(self) -> str:
        return "Secret(...)"


def exercises_of(assignment: Assignment) -> list[tuple[Part, Exercise]]:
    """The exercises of an assignment, in the editions it names. ValueError if one does not exist."""
    chapters.chapter(assignment.chapter)
    found = [(part, chapters.exercise(part.id)) for part in assignment.parts]
    return [(part, one.as_edition(part.edition) if part.edition else one) for part, one in found]


def grade_submission(
    folder: Path,
    assignment: Assignment,
    secret: str,
    submission_id: str,
    require_isolation: bool = False,
    *,
    hidden: Iterable[Path] = (),
    said: Said = lambda record: None,
    layers: tuple[str, ...] = LAYERS,
    patience: float = 1.0,
) -> GradeRecord:
    """The record of one submission, a folder or a zip.

    hidden: paths that no worker may read, in addition to the submission and the course's own. said: called with the
    record so far after each check. layers: for tests. patience: how many times as long the whole may take, by the
    clock on the wall, where other work keeps the machine busy. NotIsolated before anything is run, if require_isolation
    is set and a layer is missing; ValueError for an assignment that names something that does not exist.
    """
    chosen, begun = exercises_of(assignment), time.monotonic()
    found = collect(folder)
    with (
        system.guarded() if system.LINUX else contextlib.nullcontext(dict[str, str]()) as guard,
        Workspace((*hidden, folder), assignment.limits, layers) as workspace,
    ):
        isolation = workspace.isolation(guard)
        if require_isolation and not isolation.whole:
            raise NotIsolated(f"this machine cannot isolate a submission ({isolation.told()}): {REMEDY}")
        grader = _Grader(assignment, Secret(secret), submission_id, found, workspace, isolation, begun, said, patience)
        return grader.run(chosen)


@dataclass
class _Grader:
    """One submission in its workspace."""

    assignment: Assignment
    secret: Secret
    submission_id: str
    found: Collected
    workspace: Workspace
    isolation: Isolation
    begun: float
    said: Said
    patience: float

    def run(self, chosen: list[tuple[Part, Exercise]]) -> GradeRecord:
        """All exercises, one after the other."""
        limits = self.assignment.limits
        budget = Budget(self.begun + self.patience * limits.submission_s, limits.check_s)
        done = [_untouched(part, exercise) for part, exercise in chosen]
        pool = Pool(self.workspace.prefix)
        try:
            for at, (part, exercise) in enumerate(chosen):

                def tell(grade: ExerciseGrade, at: int = at) -> None:
                    done[at] = grade
                    self.said(self._record(done, complete=False))

                pool.spares = at + 1 < len(chosen)
                try:
                    tell(self._exercise(part, exercise, pool, budget, tell))
                except Unconfined:
                    raise
                except Exception as error:  # what a student hands in may not cost them, or others, the rest
                    kind = type(error).__name__
                    tell(replace(done[at], problem=f"the grader stumbled over this answer ({kind})"))
        finally:
            pool.close()
        record = self._record(done, complete=True)
        self.said(record)
        return record

    def _exercise(
        self, part: Part, exercise: Exercise, pool: Pool, budget: Budget, tell: Callable[[ExerciseGrade], None]
    ) -> ExerciseGrade:
        grade = _untouched(part, exercise)
        path = self.found.find(exercise.file, chapters.chapter(exercise.chapter).folder.name)
        if path is None:
            return replace(grade, problem=f"there is no file {exercise.file}")
        source = _utf8(self.found.files[path])
        grade = replace(grade, file=printable(str(path)), sha256=hashlib.sha256(self.found.files[path]).hexdigest())
        staged = self.workspace.stage(exercise, source, beside(self.found, path))
        seed = inputs_seed(self.secret.text, self.submission_id, exercise.id, 0)
        marking = Marking(exercise, part, staged, self.workspace, pool, budget, grade, f"{seed}/tells")
        return marking.run(self.secret.text, self.submission_id, self.assignment.seeds, tell)

    def _record(self, done: list[ExerciseGrade], complete: bool) -> GradeRecord:
        return GradeRecord(
            submission=printable(self.submission_id), title=self.assignment.title, exercises=tuple(done),
            isolation=self.isolation, assignment=self.assignment.fingerprint, secret=secret_mark(self.secret.text),
            files=self.found.digest, seeds=self.assignment.seeds, version=__version__, notes=tuple(self.found.notes),
            seconds=round(time.monotonic() - self.begun, 1), complete=complete,
        )  # fmt: skip


def _untouched(part: Part, exercise: Exercise) -> ExerciseGrade:
    """An exercise of which nothing was run: no points yet."""
    each = part.points / len(exercise.checks)
    checks = tuple(CheckGrade(check.name, check.says, "not run", 0.0, each) for check in exercise.checks)
    return ExerciseGrade(exercise.id, exercise.spec.title, part.edition, "", "", checks)


def _utf8(source: bytes) -> bytes:
    """A file as Python can read it: what Windows editors call "Unicode" is UTF-16."""
    if source.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return source.decode("utf-16").encode()
        except UnicodeDecodeError:
            return source
    return source
