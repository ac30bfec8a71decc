"""A student's file of one exercise, laid out so that `course oral` and `course verify` can run it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from nanocourse.checks.runner import Runner
from nanocourse.checks.worker import Kept, Worker
from nanocourse.exercises.exercise import Exercise
from nanocourse.grade.assignment import Assignment
from nanocourse.grade.collect import MAX_FILE, Collected, beside, collect
from nanocourse.grade.grade_submission import exercises_of
from nanocourse.grade.isolation import bubblewrap


@dataclass
class Submitted:
    """One exercise's file, in a folder of its own. shown: where it was found."""

    exercise: Exercise
    shown: str
    source: bytes
    path: Path

    @cached_property
    def start(self) -> Kept:
        """A worker that reads this folder, in bubblewrap if that can be used."""
        prefix = () if bubblewrap.why_not() else bubblewrap.prefix([self.path.parent])
        return Kept(partial(Worker, prefix=prefix))

    def runner(self, source: str | None = None) -> Runner:
        """The file, or another source in its place, ready to be called."""
        self.path.write_bytes(self.source if source is None else source.encode())
        return Runner(self.exercise, self.path, self.start, self.exercise.spec.limit_s)


@contextmanager
def submitted(found: Collected, shown: str, exercise: Exercise) -> Iterator[Submitted]:
    """The file, until the block ends. ValueError if the submission has none."""
    path = found.find(exercise.file, exercise.path.parents[1].name)
    if path is None:
        raise ValueError(f"{shown} has no {exercise.file}")
    with TemporaryDirectory(prefix="nanoinfer-") as folder:
        home = Path(folder).resolve()
        for name, data in beside(found, path).items():
            (home / name).write_bytes(data)
        told = shown if str(path) == Path(shown).name else f"{shown}, {path}"
        one = Submitted(exercise, told, found.files[path], home / exercise.file)
        one.path.write_bytes(one.source)
        try:
            yield one
        finally:
            one.start.close()


def read(submission: Path) -> Collected:
    """What a file, a folder or a zip holds. ValueError if it does not exist."""
    if not submission.exists():
        raise ValueError(f"there is no {submission}")
    if submission.is_file() and submission.suffix == ".py":
        with submission.open("rb") as file:
            return Collected({PurePosixPath(submission.name): file.read(MAX_FILE)})
    return collect(submission)


def asked(assignment: Path) -> list[Exercise]:
    """The exercises of an assignment, each in its edition. ValueError if the assignment cannot be read."""
    return [exercise for _, exercise in exercises_of(Assignment.load(assignment))]
