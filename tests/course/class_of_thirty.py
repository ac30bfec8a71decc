"""`python -m tests.course.class_of_thirty`: a class is graded twice, the second time with hostile submissions in it.

Says what each submission got, and took; ends with 1 if anybody's points depend on who else handed in, or one has no
result.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nanocourse.exercises import chapters
from nanocourse.exercises.sources import answer_source, function_source, whole_file
from nanocourse.grade.assignment import Assignment, Part
from nanocourse.grade.grade_class import Task, entries, grade_class
from nanocourse.grade.record import GradeRecord
from tests.course.attack_runs import ATTACKS, SECRET, exercise_of

HOSTILE = (
    "daemon", "deaf", "disk_bomb", "floods", "forged_reply", "fork_bomb", "leaves", "memory_bomb", "oversized",
    "patched_torch", "signals", "thread_bomb", "writes_results",
)  # fmt: skip
NUMBER = "def cost(*args, **more):\n    return 10**40\n"  # of exercise 1.7: once the end of a whole class


def honest(folder: Path, draw: random.Random, parts: Sequence[str]) -> None:
    """Somebody's files: mostly right, in one form or another; some with a mistake of the bank; some not handed in."""
    folder.mkdir(parents=True)
    for id in parts:
        exercise = chapters.exercise(id)
        kind = draw.choices(("reference", "right", "wrong", "none"), (4, 3, 2, 1))[0]
        bank = {"right": exercise.right, "wrong": exercise.wrong}.get(kind)
        if bank:
            (folder / exercise.file).write_text(answer_source(exercise, draw.choice(bank)), encoding="utf-8")
        elif kind != "none":
            source = whole_file(exercise, exercise.function, function_source(exercise.function))
            (folder / exercise.file).write_text(source, encoding="utf-8")


def hostile(folder: Path, name: str, draw: random.Random, parts: Sequence[str]) -> None:
    """An honest submission with one exercise replaced."""
    honest(folder, draw, parts)
    exercise = chapters.exercise("1.7") if name == "number" else exercise_of(name)
    text = NUMBER.replace("cost", exercise.name) if name == "number" else (ATTACKS / f"{name}.py").read_text("utf-8")
    (folder / exercise.file).write_text(text, encoding="utf-8")


def graded(home: Path, submissions: Path, assignment: Assignment) -> dict[str, GradeRecord]:
    """The records of all submissions in a folder, by name; two are graded at once."""
    task = Task(home / "assignment.json", home / "secret.txt", home / f"results of {submissions.name}")
    chosen, _ = entries(submissions)
    records = grade_class(chosen, task, assignment, SECRET, jobs=2)
    return {entry.id: record for entry, record in zip(chosen, records, strict=True)}


def scores(record: GradeRecord) -> list[float]:
    return [exercise.points for exercise in record.exercises]


def main(parts: Sequence[str] = (), size: int = 30, names: Sequence[str] = (*HOSTILE, "number")) -> int:
    """Grade the class and print a table."""
    parts = parts or [one.id for one in chapters.exercises(chapters.chapter(1))]
    assignment = Assignment(1, "Chapter 1", tuple(Part(id) for id in parts))
    with tempfile.TemporaryDirectory() as made:
        home, alone, together = Path(made), Path(made) / "alone", Path(made) / "together"
        assignment.save(home)
        (home / "secret.txt").write_text(SECRET)
        for number in range(size - len(names)):
            for submissions in (alone, together):
                honest(submissions / f"student-{number:02}", random.Random(number), parts)
        for number, name in enumerate(names):
            hostile(together / f"hostile-{name}", name, random.Random(100 + number), parts)
        before, after = graded(home, alone, assignment), graded(home, together, assignment)
    print("| submission | points | alone | seconds | alone |\n| --- | ---: | ---: | ---: | ---: |")
    for id, record in after.items():
        other = before.get(id)
        points, took = (f"{other.points:g}", f"{other.seconds:.1f}") if other else ("", "")
        print(f"| {id} | {record.points:g} of {record.of:g} | {points} | {record.seconds:.1f} | {took} |")
    changed = [id for id, record in before.items() if scores(record) != scores(after[id])]
    lost = [id for id, record in after.items() if not record.complete and not id.startswith("hostile-")]
    took = statistics.median(record.seconds for record in before.values())
    print(f"\n{len(after)} submissions; {took:.1f} s is the median of an honest one. Changed: {changed}; lost: {lost}")
    return bool(changed or lost or len(after) != size)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
