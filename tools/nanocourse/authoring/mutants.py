"""Every one-token mutant of a function: another operator, constant, index or argument order, or a deleted line.

Left out are three changes that make no mistake of a right function: see `_equal`. A mutant is named by the statement
that it changes, as the statement then reads, so its name survives edits elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

BINARY: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div, ast.Add), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,), ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,), ast.BitXor: (ast.BitAnd,), ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,),
    ast.MatMult: (ast.Mult,),
}  # fmt: skip
COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}  # fmt: skip
SYMMETRIC = {"min", "max", ".minimum", ".maximum", ".transpose"}
LINES = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.For, ast.While, ast.Break, ast.Assert)


@dataclass(frozen=True)
class Mutant:
    """One mutant. name: the changed statement as it now reads, or `without: ...`."""

    name: str
    source: str


def mutants(source: str) -> list[Mutant]:
    """All mutants of one function's source, each once, in the order of the source."""
    tree = ast.parse(source)
    drop_inert(tree)
    original, nodes = ast.unparse(tree), list(ast.walk(tree))
    statement_of = {node: one for one in nodes if isinstance(one, ast.stmt) for node in _own(one)}
    equal = {same for node in nodes for same in _equal(node)}
    found: dict[str, Mutant] = {}
    for node in nodes:
        for field, value, name in () if node in equal else _changes(node):
            before = getattr(node, field)
            setattr(node, field, value)
            text = ast.unparse(tree)
            if text != original and text not in found:
                found[text] = Mutant(name or _head(statement_of[node]), text + "\n")
            setattr(node, field, before)
    order = sorted(found.values(), key=lambda mutant: mutant.name)
    return [Mutant(_unique(mutant.name, order[:at]), mutant.source) for at, mutant in enumerate(order)]


def _changes(node: ast.AST) -> Iterator[tuple[str, Any, str]]:
    """The changes that can be made at a node: a field, its new value, and a name unless the statement gives it."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        yield from (("op", op(), "") for op in BINARY.get(type(node.op), ()))
    elif isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            yield from (("ops", _with(node.ops, at, other()), "") for other in COMPARED.get(type(op), ()))
    elif isinstance(node, ast.BoolOp):
        yield "op", ast.Or() if isinstance(node.op, ast.And) else ast.And(), ""
    elif isinstance(node, ast.Constant):
        yield from (("value", value, "") for value in _constants(node.value))
    elif isinstance(node, ast.Slice):
        yield from ((side, None, "") for side in ("lower", "upper", "step") if getattr(node, side) is not None)
    elif isinstance(node, ast.Call) and not any(isinstance(arg, ast.Starred) for arg in node.args):
        yield from (("args", swapped, "") for swapped in _swapped(node.args))
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        yield from (("elts", swapped, "") for swapped in _swapped(node.elts))
    if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield "operand", ast.UnaryOp(node.op, node.operand), ""  # twice: as if it were not there
    body: Any = getattr(node, "body", None)
    for at, line in enumerate(body) if isinstance(body, list) else ():
        if isinstance(line, LINES):
            yield "body", _with(body, at, ast.Pass()), f"without: {_head(line)}"


def _equal(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that may be changed: calls with arguments in any order, tuples that are sets, and `strict` of a zip."""
    if isinstance(node, ast.keyword) and node.arg == "strict":
        yield node.value
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
        yield from (one for one in node.comparators if isinstance(one, ast.Tuple))
    elif isinstance(node, ast.Call):
        called = f".{node.func.attr}" if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if called in SYMMETRIC:
            yield node
        if called == ".fromkeys":
            yield node.args[0]


def _constants(value: object) -> tuple[object, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1)
    return (value * 2, value / 2) if isinstance(value, float) else ()


def _with(items: list[Any], at: int, new: Any) -> list[Any]:
    """The items with another one at a place."""
    return [*items[:at], new, *items[at + 1 :]]


def _swapped(items: list[Any]) -> Iterator[list[Any]]:
    """The items with two neighbours exchanged, each pair in turn."""
    yield from ([*items[:at], items[at + 1], items[at], *items[at + 2 :]] for at in range(len(items) - 1))


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement that are not within a statement of its body."""
    yield statement
    stack = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
    while stack:
        node = stack.pop()
        yield node
        stack += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]


def _head(statement: ast.stmt) -> str:
    """A statement in one line; of one with a body, the line that opens it."""
    return ast.unparse(statement).split("\n")[0]


def _unique(name: str, before: list[Mutant]) -> str:
    same = sum(mutant.name == name for mutant in before)
    return f"{name}  # {same + 1}" if same else name


def drop_inert(tree: ast.Module) -> None:
    """Remove docstrings and annotations, whose mutants no check could see; a kernel's constexpr annotations stay."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        elif isinstance(node, ast.arg) and "constexpr" not in ast.unparse(node.annotation or ast.Constant("")):
            node.annotation = None
