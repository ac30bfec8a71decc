"""What is true, beside each oral question: the learner's file is run as it is, and with the change that is proposed.

What expressions are worth on the example is noted by a copy of the file in which they are wrapped; what a change does
is said by the checks, with the smallest input that shows it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from nanocourse.checks.check import check_exercise
from nanocourse.checks.results import ExerciseResult
from nanocourse.exercises.cases import Call, Case
from nanocourse.exercises.outcomes import Returned, told
from nanocourse.release.oral import draw, spy
from nanocourse.release.oral.questions import Place, Question, place
from nanocourse.release.submitted import Submitted

SHOWN = 3  # values of one expression
TRIES = 12  # mistakes that are tried before one is planted


def source_of(of: Submitted) -> str:
    """The file's text, with newlines as on Linux."""
    return of.source.decode("utf-8-sig", "replace").replace("\r\n", "\n")


def lines_that_ran(of: Submitted) -> frozenset[int]:
    """The lines of the file that ran in the checks and in the example; empty where that cannot be told."""
    runner = of.runner(source_of(of))
    if not runner.load():
        return frozenset()
    runner.call(of.exercise.example())
    for check in of.exercise.checks:
        for at in range(check.cases):
            asked = of.exercise.call(check, Case(f"course/{check.name}/{at}"))
            if not asked.compiles:
                runner.call(asked)
    return frozenset(runner.executed)


def truths(of: Submitted, question: Question) -> Iterator[str]:
    """What is true, line by line."""
    yield from question.known
    if question.seen and of.exercise.spec.kernel is None:
        yield from values(of, question.seen)
    if question.changed:
        yield from outcome(of, question.changed, "So it is" if question.kind == "a mistake" else "With the change")


def values(of: Submitted, places: Sequence[Place]) -> Iterator[str]:
    """The values of expressions while the example runs, the first ones of each, and how many there are."""
    wrapped = Wrapped(places)
    tree = wrapped.visit(ast.parse(source_of(of)))
    runner = of.runner(ast.unparse(ast.fix_missing_locations(tree)) + "\n\n\n" + inspect.getsource(spy))
    runner.load()
    runner.call(of.exercise.example())
    seen: dict[int, list[str]] = defaultdict(list)
    for number, text in _noted(of):
        seen[number].append(text)
    for number, code in wrapped.found.items():
        if not seen[number]:
            yield f"On the example `{code}` is not reached"
        elif number in wrapped.counted:
            yield f"On the example the body runs {_times(seen[number])}"
        else:
            more = f", and {len(seen[number]) - SHOWN} more" * (len(seen[number]) > SHOWN)
            yield f"On the example `{code}` is {'; then '.join(seen[number][:SHOWN])}{more}"


def _noted(of: Submitted) -> list[tuple[int, str]]:
    """What the copy has noted, which runs anybody's code: anything else than numbers and texts is left out."""
    worker = of.start()
    worker.load(of.path, spy.LOG)
    got = worker.call(Call(()), of.exercise.spec.limit_s)
    found = got.value if isinstance(got, Returned) and isinstance(got.value, list) else []
    pairs = [one for one in found if isinstance(one, tuple) and len(one) == 2]
    return [(number, text) for number, text in pairs if isinstance(number, int) and isinstance(text, str)]


def _times(found: list[str]) -> str:
    return "once" if len(found) == 1 else f"{len(found)} times" + " or more" * (len(found) >= spy.MOST)


def outcome(of: Submitted, source: str, what: str) -> Iterator[str]:
    """What the checks and the example say of a source in place of the file."""
    result = checked(of, source)
    yield f"{what}, {verdict(result)}"
    runner = of.runner(source)
    if of.exercise.spec.kernel is None and runner.load():
        before = told(of.exercise.expected(of.exercise.example()))
        got = told(runner.call(of.exercise.example()))
        yield f"On the example it gives {got}" + f"; right is {before}" * (got != before)


def checked(of: Submitted, source: str) -> ExerciseResult:
    """All checks on a source in place of the file."""
    of.runner(source)
    return check_exercise(of.exercise, Path(of.path), of.start)


def verdict(result: ExerciseResult) -> str:
    """What the checks say: all pass, or the first that does not, with its input."""
    failed = next((check for check in result.checks if check.status != "passed"), None)
    if result.problem or failed is None:
        return result.problem or "all checks pass: none of their inputs shows a difference"
    if failed.failure is None:
        return f"check {failed.name}: {failed.status}{': ' * bool(failed.note)}{failed.note}"
    given = ", ".join(f"{name} = {value}" if name else value for name, value in failed.failure.inputs)
    where = f"at {failed.failure.where} " * bool(failed.failure.where)
    return f"check {failed.name} fails on {given}: {where}expected {failed.failure.expected}, got {failed.failure.got}"


def planted(of: Submitted, secret: str, ran: frozenset[int]) -> tuple[str, list[str]]:
    """The file with a mistake in one of its lines, and what it is. ValueError where none is found that shows.

    A mistake that gives another number is taken rather than one that raises an error.
    """
    source, second = source_of(of), None
    for change in draw.changes(of.exercise, source, secret, ran)[:TRIES]:
        result = checked(of, change.changed)
        if result.status != "failed":
            continue
        lines = change.changed.splitlines()
        found = change.changed, [
            f"Line {change.line} was: {change.code}", f"It reads: {lines[change.line - 1].strip()}", verdict(result),
        ]  # fmt: skip
        failures = [check.failure for check in result.checks if check.failure is not None]
        if failures and not re.match(r"\w*(Error|Exception)\b", failures[0].got):
            return found
        second = second or found
    if second is None:
        raise ValueError(f"{of.exercise.file} has no line in which a mistake would show")
    return second


class Wrapped(ast.NodeTransformer):
    """Wraps the expressions at these places, each in a call that prints its value; counts how often a block runs."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = {one: number for number, one in enumerate(dict.fromkeys(places))}
        self.found: dict[int, str] = {}
        self.counted: set[int] = set()

    def visit(self, node: ast.AST) -> ast.AST:
        whole = isinstance(node, ast.expr) or (isinstance(node, ast.stmt) and not isinstance(node, ast.Expr))
        number = self.places.get(place(node)) if whole else None
        if number is None or number in self.found or isinstance(getattr(node, "ctx", None), ast.Store):
            return self.generic_visit(node)
        self.found[number] = " ".join(ast.unparse(node).split())
        inner = self.generic_visit(node)
        asked = ast.Call(ast.Name(spy.NAME, ast.Load()), [ast.Constant(number)], [])
        if isinstance(inner, ast.stmt):
            self.counted.add(number)
            return ast.copy_location(ast.If(asked, [inner], []), node)
        asked.args.append(inner)  # type: ignore[arg-type]
        return ast.copy_location(asked, node)
