"""Shared by the tests of the course: files as learners write them, one worker for many of them, and the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nanocourse.checks.check import check_exercise
from nanocourse.checks.results import ExerciseResult
from nanocourse.checks.worker import Worker
from nanocourse.exercises import chapters, sources
from nanocourse.exercises.exercise import Exercise
from nanocourse.learner.folder import Folder
from nanocourse.release.plan import Plan

EXERCISES = [exercise for chapter in chapters.chapters() for exercise in chapters.exercises(chapter)]


class Keep:
    """One worker for many files, started anew where one has ended it."""

    def __init__(self) -> None:
        self.worker = Worker()

    def take(self) -> Worker:
        if not self.worker.alive:
            self.worker = Worker()
        self.worker.close = lambda: None  # type: ignore[method-assign]  # it is kept until the tests are done
        return self.worker

    def end(self) -> None:
        Worker.close(self.worker)


def answer(id: str, name: str) -> str:
    """A wrong answer or a correct variant, as a learner would have written it."""
    exercise = chapters.exercise(id)
    (found,) = (one for one in (*exercise.wrong, *exercise.right) if one.name == name)
    return sources.answer_source(exercise, found)


def right_file(exercise: Exercise) -> str:
    """The right answer, as a learner would have written it."""
    return sources.whole_file(exercise, exercise.function, sources.function_source(exercise.function))


def own(folder: Path, id: str, content: str) -> Path:
    """Put an answer into the learner's folder `my-course`."""
    exercise = chapters.exercise(id)
    path = Folder(folder / "my-course").file(chapters.chapter(exercise.chapter), exercise)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def checked(
    exercise: Exercise,
    source: str | bytes,
    folder: Path,
    keep: Keep,
    name_mistakes: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> ExerciseResult:
    """The result of checking a file with this content."""
    path = folder / exercise.file
    path.write_bytes(source.encode() if isinstance(source, str) else source)
    return check_exercise(exercise, path, keep.take, name_mistakes=name_mistakes, say=say)


class Told(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


Course = Callable[..., Told]


class Released(NamedTuple):
    """A release, and what it was planned as."""

    plan: Plan
    to: Path

    @property
    def student(self) -> Path:
        return self.to / "student"

    @property
    def autograder(self) -> Path:
        return self.to / "autograder"
