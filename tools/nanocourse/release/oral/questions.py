"""What can be asked about a learner's function: about single lines, and about the whole as seen from a line."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nanocourse.authoring.mutants import COMPARED
from nanocourse.exercises.exercise import Exercise
from nanocourse.release.oral.texts import TEXTS

SIGNS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in",
    ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
}  # fmt: skip
CALLS = {
    "dimension": {
        "softmax", "log_softmax", "cumsum", "sum", "max", "min", "amax", "amin", "mean", "sort", "argmax", "argsort",
        "flip", "gather", "topk", "any", "all", "logsumexp", "prod",
    },
    "layout": {
        "transpose", "permute", "view", "reshape", "flatten", "unflatten", "unbind", "chunk", "split", "expand",
        "unsqueeze", "squeeze", "stack", "cat", "repeat", "movedim",
    },
    "replaced values": {"masked_fill", "where", "clamp", "nan_to_num", "minimum", "maximum", "triu", "tril"},
    "precision": {"exp", "exp2", "log", "log1p", "log2", "sqrt", "rsqrt", "tanh", "expm1"},
    "library": {"layer_norm", "gelu", "scaled_dot_product_attention", "linear", "embedding", "addmm", "einsum", "bmm"},
}  # fmt: skip
PLAIN = (0, 1, -1, 2)  # numbers that need no reason
QUOTED = 100  # characters of a line
BLOCKS = (ast.If, ast.For, ast.While)
LINES = (ast.Assign, ast.AugAssign, ast.AnnAssign, *BLOCKS)


@dataclass(frozen=True)
class Question:
    """One question. kind: what it is about. code: the learner's line. listen: what a good answer has in it."""

    kind: str
    line: int
    code: str
    text: str
    listen: str


Found = tuple[str, dict[str, str]]  # a kind, and the words that its text leaves open


def about_lines(function: ast.FunctionDef, lines: Sequence[str]) -> Iterator[Question]:
    """All questions about the lines of one function, in order; annotations and docstrings are left out."""
    lent = {arg.arg for arg in function.args.args}
    for statement in function.body:
        for node in _inside(statement):
            ask = ASKED.get(type(node))
            for kind, words in ask(node, lent) if ask else ():
                yield question(kind, node, lines, words)


def about_the_whole(exercise: Exercise, function: ast.FunctionDef, lines: Sequence[str]) -> Iterator[Question]:
    """One question for each invariant, and for each line that could be left out or computed by hand."""
    end = next((node for node in reversed(function.body) if isinstance(node, ast.Return)), function.body[-1])
    for invariant in exercise.spec.invariants:
        yield question("invariant", end, lines, {"code": invariant})
    for node in ast.walk(function):
        if isinstance(node, LINES):
            more = ", with all that is indented under it" if isinstance(node, BLOCKS) else ""
            yield question("left out", node, lines, {"code": more})
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield question("by hand", node, lines, {"code": node.targets[0].id})


def question(kind: str, node: ast.AST, lines: Sequence[str], words: dict[str, str]) -> Question:
    """A question of this kind about the line where a node begins."""
    at, (text, listen) = int(getattr(node, "lineno", 1)), TEXTS[kind]
    return Question(kind, at, lines[at - 1].strip()[:QUOTED], text.format(**words), listen)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement except annotations, parameters and bare strings."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    yield node
    skipped = ("annotation", "returns", "args") if isinstance(node, ast.FunctionDef | ast.Lambda) else ("annotation",)
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in skipped:
                yield from _inside(child)


def _compared(node: ast.Compare, lent: set[str]) -> Iterator[Found]:
    old = type(node.ops[0])
    yield "comparison", {"code": _code(node), "old": SIGNS[old], "new": SIGNS[COMPARED[old][0]]}


def _indexed(node: ast.Subscript, lent: set[str]) -> Iterator[Found]:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if any(isinstance(part, ast.Constant) and part.value is None for part in parts):
        yield "new dimension", {"code": _code(node)}
    elif sum(not isinstance(part, ast.Slice) for part in parts) > 1:
        yield "index", {"code": _code(node)}
    elif any(isinstance(part, ast.Slice) and (part.lower or part.upper) for part in parts):
        yield "slice", {"code": _code(node)}
    elif _whole(parts[0]):
        yield "one of many", {"code": _code(node)}
    elif not isinstance(parts[0], ast.Slice | ast.Constant):
        yield "picked", {"code": _code(node)}


def _called(node: ast.Call, lent: set[str]) -> Iterator[Found]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if isinstance(node.func, ast.Name) and name in lent:
        yield "lent function", {"code": name}
    elif isinstance(node.func, ast.Name) and name in ("min", "max", "range"):
        yield "bound", {"code": _code(node)}
    elif isinstance(node.func, ast.Attribute):
        yield from ((kind, {"code": _code(node)}) for kind, names in CALLS.items() if name.rstrip("_") in names)


def _computed(node: ast.BinOp, lent: set[str]) -> Iterator[Found]:
    kinds: dict[type[ast.operator], str] = {
        ast.MatMult: "product", ast.FloorDiv: "whole numbers", ast.Mod: "whole numbers", ast.Div: "scale",
        ast.Pow: "scale",
    }  # fmt: skip
    if type(node.op) in kinds:
        yield kinds[type(node.op)], {"code": _code(node)}


def _repeated(node: ast.stmt, lent: set[str]) -> Iterator[Found]:
    yield "loop", {}


def _branched(node: ast.AST, lent: set[str]) -> Iterator[Found]:
    yield "branch", {}


def _updated(node: ast.AugAssign, lent: set[str]) -> Iterator[Found]:
    yield "in place", {"code": _code(node)}


def _number(node: ast.Constant, lent: set[str]) -> Iterator[Found]:
    if isinstance(node.value, int | float) and not isinstance(node.value, bool) and node.value not in PLAIN:
        yield "number", {"code": repr(node.value)}


ASKED: dict[type[ast.AST], Callable[..., Iterator[Found]]] = {
    ast.Compare: _compared, ast.Subscript: _indexed, ast.Call: _called, ast.BinOp: _computed, ast.For: _repeated,
    ast.While: _repeated, ast.If: _branched, ast.IfExp: _branched, ast.AugAssign: _updated, ast.Constant: _number,
}  # fmt: skip


def _whole(node: ast.AST) -> bool:
    """Whether an index is a literal number."""
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _code(node: ast.AST) -> str:
    """A piece of code in one line, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= QUOTED else text[: QUOTED - 4] + " ..."
