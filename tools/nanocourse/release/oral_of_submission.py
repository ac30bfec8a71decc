"""From a submission to questions: the learner's file found, wherever it lies, and the edition that he was given."""

from __future__ import annotations

from pathlib import Path

from nanocourse.exercises import chapters
from nanocourse.exercises.exercise import Exercise
from nanocourse.grade.assignment import Assignment, load_secret
from nanocourse.grade.collect import MAX_FILE, collect
from nanocourse.release.askable_places import Question
from nanocourse.release.oral import questions


def of_submission(submission: Path, id: str, assignment: Path, again: int) -> tuple[Exercise, str, list[Question]]:
    """The exercise, the file that was read, and the questions. ValueError, one sentence, where there is none to ask."""
    asked = Assignment.load(assignment)
    part = next((one for one in asked.parts if one.id == id), None)
    if part is None:
        raise ValueError(f"exercise must be one of {', '.join(one.id for one in asked.parts)}, not {id!r}")
    exercise = chapters.exercise(id)
    exercise = exercise.as_edition(part.edition) if part.edition else exercise
    name, data = _file(submission, exercise)
    source = data.decode("utf-8-sig", "replace").replace("\r\n", "\n")
    return exercise, name, questions(exercise, source, load_secret(assignment), again)


def _file(submission: Path, exercise: Exercise) -> tuple[str, bytes]:
    """Name and content of the learner's file: this one, or the one of the exercise's name in a folder or zip."""
    if not submission.exists():
        raise ValueError(f"there is no {submission}")
    if submission.is_file() and submission.suffix == ".py":
        with submission.open("rb") as file:
            return str(submission), file.read(MAX_FILE)
    found = collect(submission)
    path = found.find(exercise.file, exercise.path.parents[1].name)
    if path is None:
        raise ValueError(f"{submission} has no {exercise.file}")
    return f"{submission}, {path}", found.files[path]
