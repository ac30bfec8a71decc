"""Questions about a learner's own function, drawn from its syntax tree.

Two are about what a line does, one is about the whole function as seen from a line, one about the same task in another
form. They quote the learner's lines and no answer; the same secret and file give the same questions.
"""

from __future__ import annotations

import ast
import hashlib
import hmac
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nanocourse.exercises import chapters
from nanocourse.exercises.exercise import Exercise, Function
from nanocourse.exercises.sources import answer_source, function_source
from nanocourse.release.oral.questions import Found, Question, about_lines, about_the_whole, question

NARROW, WIDE = 2, 1  # questions about a line, and about the whole


def questions(
    exercise: Exercise, source: str, secret: str, again: int = 0, ran: frozenset[int] = frozenset()
) -> list[Question]:
    """Three questions about this file, and one that goes beyond it. ValueError if there is nothing to ask about.

    again: which draw of them. ran: the lines that ran in the checks, empty if that is not known; others are not asked
    about, for nobody can say what a line does that nothing reaches.
    """
    lines, function = source.splitlines(), learners(exercise, source)
    draw = _draw(exercise, source, secret)
    narrow = _ordered(draw, [one for one in narrow_questions(source) if reached(one, ran)])
    broad = _ordered(draw, [one for one in about_the_whole(exercise, function, lines) if reached(one, ran)])
    if len(narrow) < NARROW:
        narrow += broad
    first = [narrow[at % len(narrow)] for at in range(again * NARROW, (again + 1) * NARROW)]
    rest = [one for one in broad if one not in first] or broad
    beyond = list(transfer(exercise, function, lines))
    draw.shuffle(beyond)
    return [*sorted([*first, rest[again % len(rest)]], key=lambda one: one.line), beyond[again % len(beyond)]]


def narrow_questions(source: str) -> list[Question]:
    """All questions about single lines of a file's functions."""
    lines = source.splitlines()
    own = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return [one for node in own for one in about_lines(node, lines)]


def changes(exercise: Exercise, source: str, secret: str, ran: frozenset[int] = frozenset()) -> list[Question]:
    """All questions that propose a change, in an order that the secret determines: mistakes that could be planted."""
    one_line = [one for one in narrow_questions(source) if one.changed.count("\n") == len(source.splitlines())]
    found = [one for one in one_line if reached(one, ran)]
    _draw(exercise, source, secret).shuffle(found)
    return found


def reached(question: Question, ran: frozenset[int]) -> bool:
    """Whether a line of the question's code ran."""
    return not ran or not ran.isdisjoint(range(question.line, question.last + 1))


def transfer(exercise: Exercise, function: ast.FunctionDef, lines: Sequence[str]) -> Iterator[Question]:
    """The same task in each form that the learner was not given; where there is none, somebody else's mistakes."""
    plain = chapters.exercise(exercise.id)
    given = exercise.edition.name if exercise.edition else ""
    forms = {one.name: (one.says, one.reference) for one in exercise.editions}
    forms |= {"": ("as the chapter prints it", plain.function)} if given else {}
    for name, (says, reference) in forms.items():
        if name != given:
            asked = question(Found("another form", says), function, lines)
            yield replace(asked, known=("Right, in that form:", *_body(reference)))
    if not forms:
        for wrong in exercise.real_wrong:
            asked = question(Found("a mistake", wrong.says), function, lines)
            yield replace(asked, changed=answer_source(exercise, wrong))


def _body(function: Function) -> list[str]:
    """The lines of a function, without its docstring."""
    (node,) = ast.parse(function_source(function)).body
    assert isinstance(node, ast.FunctionDef)
    node.body = list(done(node)) or node.body
    return ast.unparse(node).splitlines()


def _draw(exercise: Exercise, source: str, secret: str) -> random.Random:
    text = json.dumps(["oral", exercise.id, hashlib.sha256("\n".join(source.splitlines()).encode()).hexdigest()])
    return random.Random(hmac.new(bytes.fromhex(secret), text.encode(), hashlib.sha256).hexdigest())


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
