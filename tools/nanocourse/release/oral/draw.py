"""Three questions about a learner's own function, drawn from its syntax tree.

Two are about what a line does, one is about the whole function as seen from a line. They quote the learner's lines and
no answer; the same secret and file give the same questions.
"""

from __future__ import annotations

import ast
import hashlib
import hmac
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from nanocourse.exercises import chapters
from nanocourse.exercises.exercise import Exercise
from nanocourse.grade.assignment import Assignment, load_secret
from nanocourse.grade.collect import MAX_FILE, collect
from nanocourse.release.oral.questions import Question, about_lines, about_the_whole

NARROW, WIDE = 2, 1  # questions about a line, and about the whole


def of_submission(submission: Path, id: str, assignment: Path, again: int) -> tuple[Exercise, str, list[Question]]:
    """The exercise, the file that was read, and the questions. ValueError if there is nothing to ask about."""
    asked = Assignment.load(assignment)
    part = next((one for one in asked.parts if one.id == id), None)
    if part is None:
        raise ValueError(f"exercise must be one of {', '.join(one.id for one in asked.parts)}, not {id!r}")
    exercise = chapters.exercise(id)
    exercise = exercise.as_edition(part.edition) if part.edition else exercise
    name, data = _file(submission, exercise)
    source = data.decode("utf-8-sig", "replace").replace("\r\n", "\n")
    return exercise, name, questions(exercise, source, load_secret(assignment), again)


def questions(exercise: Exercise, source: str, secret: str, again: int = 0) -> list[Question]:
    """Three questions about this file. again: which draw of them. ValueError if there is nothing to ask about."""
    function = learners(exercise, source)
    lines = source.splitlines()
    tree = ast.parse(source)
    own = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    text = json.dumps(["oral", exercise.id, hashlib.sha256("\n".join(lines).encode()).hexdigest()])
    draw = random.Random(hmac.new(bytes.fromhex(secret), text.encode(), hashlib.sha256).hexdigest())
    narrow = _ordered(draw, [one for node in own for one in about_lines(node, lines)])
    broad = _ordered(draw, list(about_the_whole(exercise, function, lines)))
    if len(narrow) < NARROW:
        narrow += broad
    first = [narrow[at % len(narrow)] for at in range(again * NARROW, (again + 1) * NARROW)]
    rest = [one for one in broad if one not in first] or broad
    return sorted([*first, rest[again % len(rest)]], key=lambda one: one.line)


def learners(exercise: Exercise, source: str) -> ast.FunctionDef:
    """The learner's function. ValueError if the file has none, or if it is the untouched stub."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{exercise.file} cannot be read as Python: {error}") from error
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == exercise.name]
    if not found:
        raise ValueError(f"{exercise.file} has no function {exercise.name}")
    if not list(done(found[-1])):
        raise ValueError(f"{exercise.file} is the untouched stub: it has nothing of its author's to ask about")
    return found[-1]


def done(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """The statements of a function that do something."""
    for statement in function.body:
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        undone = isinstance(statement, ast.Raise) and "NotImplementedError" in ast.unparse(statement)
        if not (text or undone or isinstance(statement, ast.Pass)):
            yield statement


def _ordered(draw: random.Random, found: Sequence[Question]) -> list[Question]:
    """Shuffled, with neighbours of different kinds and lines as far as possible."""
    waiting = list(found)
    draw.shuffle(waiting)
    order: list[Question] = []
    while waiting:
        last = order[-1] if order else None
        best = min(waiting, key=lambda one: last is not None and (one.kind == last.kind) + 2 * (one.line == last.line))
        waiting.remove(best)
        order.append(best)
    return order


def _file(submission: Path, exercise: Exercise) -> tuple[str, bytes]:
    """Name and content of the learner's file: this file, or the exercise's file in a folder or zip."""
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
