"""What can be asked about the whole of a learner's function, seen from one of its lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nanocourse.exercises.exercise import Exercise
from nanocourse.release.askable_places import Question, question

BLOCKS = (ast.If, ast.For, ast.While)
LINES = (ast.Assign, ast.AugAssign, ast.AnnAssign, *BLOCKS)


def wide(exercise: Exercise, function: ast.FunctionDef, lines: Sequence[str]) -> Iterator[Question]:
    """A question an invariant, and one for each line that could be left out or computed by hand."""
    end = next((node for node in reversed(function.body) if isinstance(node, ast.Return)), function.body[-1])
    for invariant in exercise.spec.invariants:
        yield question("invariant", end, lines, {"code": invariant})
    for node in ast.walk(function):
        if isinstance(node, LINES):
            more = ", with all that is indented under it" if isinstance(node, BLOCKS) else ""
            yield question("left out", node, lines, {"code": more})
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield question("by hand", node, lines, {"code": node.targets[0].id})
