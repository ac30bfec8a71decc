"""Grading one submission: collect files, stage them, ask workers, compare, record. The parent decides everything.

A check passes if every input of every seed agrees. What a worker says about itself decides nothing: it runs the
student's code, which may have rewritten all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from nanocourse.exercises import chapters
from nanocourse.exercises.exercise import Exercise
from nanocourse.grade.assignment import Assignment, Part, inputs_seed, secret_mark
from nanocourse.grade.collect import collect, printable
from nanocourse.grade.graded_worker import Pool, Unconfined
from nanocourse.grade.hidden_inputs import questions
from nanocourse.grade.isolation import system
from nanocourse.grade.isolation.confine import LAYERS
from nanocourse.grade.mark import Budget, Marking
from nanocourse.grade.record import CheckGrade, ExerciseGrade, GradeRecord
from nanocourse.grade.workspace import Workspace
from nanoinfer import __version__

Said = Callable[[GradeRecord], None]
REMEDY = "grade in the release's container, or with --trust-students"


class NotIsolated(Exception):
    """A layer of isolation is missing and all were required; the message is one sentence."""


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
    chosen, begun, limits = exercises_of(assignment), time.monotonic(), assignment.limits
    found, budget = collect(folder), Budget(begun + patience * limits.submission_s, limits.check_s)
    done = [_untouched(part, exercise) for part, exercise in chosen]
    with system.guarded() as guard, Workspace((*hidden, folder), limits, layers) as workspace:
        isolation = workspace.isolation(guard)
        if require_isolation and not isolation.whole:
            raise NotIsolated(f"this machine cannot isolate a submission ({isolation.told()}): {REMEDY}")

        def told(complete: bool = False) -> GradeRecord:
            record = GradeRecord(
                printable(submission_id), assignment.title, tuple(done), isolation, assignment.fingerprint,
                secret_mark(secret), found.digest, assignment.seeds, __version__, tuple(found.notes),
                seconds=round(time.monotonic() - begun, 1), complete=complete,
            )  # fmt: skip
            said(record)
            return record

        with closing(Pool(workspace.prefix)) as pool:
            for at, (_, exercise) in enumerate(chosen):
                pool.spares = at + 1 < len(chosen)
                asked = questions(exercise, secret, submission_id, assignment.seeds)
                tells = f"{inputs_seed(secret, submission_id, exercise.id, 0)}/tells"
                try:
                    for grade in Marking(exercise, workspace, pool, budget, tells, done[at]).run(found, asked):
                        done[at] = grade
                        told()
                except Unconfined:
                    raise
                except Exception as error:  # what a student hands in may not cost them, or others, the rest
                    kind = type(error).__name__
                    done[at] = replace(done[at], problem=f"the grader stumbled over this answer ({kind})")
        return told(complete=True)


def _untouched(part: Part, exercise: Exercise) -> ExerciseGrade:
    """An exercise of which nothing was run: no points yet."""
    each = part.points / len(exercise.checks)
    checks = tuple(CheckGrade(check.name, check.says, "not run", 0.0, each) for check in exercise.checks)
    return ExerciseGrade(exercise.id, exercise.spec.title, part.edition, "", "", checks)
