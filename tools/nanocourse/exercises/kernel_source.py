"""Of a learner's file with a kernel, what is a kernel: all else is left out before anything is run.

So what the interpreter runs is what the compiler compiles, and neither runs another line. A name that tells the two
apart is refused.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any

BUILTINS = {"range", "min", "max", "abs", "float", "int", "bool", "len", "print", "NotImplementedError"}
OF_A_VALUE = {"shape", "dtype", "type", "element_ty", "value"}  # beside what Triton's classes list
IMPORTED = {
    "triton": {"jit", "language", "cdiv", "next_power_of_2"}, "triton.language": None, "math": None,
    "__future__": {"annotations"},
}  # fmt: skip
NO_KERNEL = (
    ast.Import, ast.ImportFrom, ast.Try, ast.With, ast.Lambda, ast.ClassDef, ast.Global, ast.Nonlocal, ast.Delete,
    ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef,
)  # fmt: skip


def kernel_source(source: bytes | str, name: str) -> str:
    """The file's kernels, constants and imports of Triton, each in its old line; the other lines are empty.

    ValueError, one sentence, if the function of that name is not what Triton could compile from its text alone.
    """
    text = importlib.util.decode_source(source) if isinstance(source, bytes) else source
    tree = ast.parse(text)
    kept = [node for node in tree.body if _is_kept(node)]
    if any(
        _binds(node, name) and not (isinstance(node, ast.FunctionDef) and node in kept)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
    ):
        raise ValueError(f"{name} must be made by `def` alone")
    needed = _needed(kept, name)
    kept = [node for node in kept if not isinstance(node, ast.FunctionDef) or node.name in needed]
    functions = [node for node in kept if isinstance(node, ast.FunctionDef)]
    if len({node.name for node in functions}) < len(functions):
        raise ValueError(f"{name}, or what it calls, is defined more than once")
    lines, left = text.splitlines(keepends=True), dict[int, str]()
    for node in kept:
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        left |= {at: lines[at - 1] for at in range(first, (node.end_lineno or first) + 1)}
    made = "".join(left.get(at, "\n") for at in range(1, len(lines) + 1))
    if [ast.dump(node) for node in ast.parse(made).body] != [ast.dump(node) for node in kept]:
        raise ValueError("each import, constant and kernel must have lines of its own")
    known = {one for node in kept for one in _bound(node)} | BUILTINS
    for function in functions:
        _check(function, known, _modules(kept))
    return made


def _needed(kept: list[ast.stmt], name: str) -> set[str]:
    """The functions that the one of that name calls, and their own, itself included."""
    functions = {node.name: node for node in kept if isinstance(node, ast.FunctionDef)}
    found, waiting = set[str](), [name]
    while waiting:
        one = waiting.pop()
        if one in functions and one not in found:
            found.add(one)
            waiting += [node.id for node in ast.walk(functions[one]) if isinstance(node, ast.Name)]
    return found


def _is_kept(node: ast.stmt) -> bool:
    """Whether a statement of the file is a kernel, a constant, or an import of what kernels are made of."""
    if isinstance(node, ast.FunctionDef):
        return True
    if isinstance(node, ast.Import):
        return all(alias.name in IMPORTED for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        allowed = IMPORTED.get(node.module or "", set())
        return allowed is None or (bool(allowed) and all(alias.name in allowed for alias in node.names))
    if isinstance(node, ast.Assign | ast.AnnAssign):
        value = node.value
        wrapped = isinstance(value, ast.Call) and ast.unparse(value.func).endswith("constexpr") and len(value.args) == 1
        return _literal(value.args[0] if wrapped and isinstance(value, ast.Call) else value)
    return False


def _literal(node: ast.expr | None) -> bool:
    """Whether it is made of numbers, texts and arithmetic."""
    plain = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.List, ast.operator, ast.unaryop, ast.expr_context)
    return node is not None and all(isinstance(one, plain) for one in ast.walk(node))


def _check(function: ast.FunctionDef, known: set[str], modules: dict[str, ModuleType]) -> None:
    """ValueError for what tells an interpreter from a compiler, or reaches beyond arithmetic."""
    given = function.args
    defaults = [*given.defaults, *filter(None, given.kw_defaults)]
    decorators = [ast.unparse(one) for one in function.decorator_list]
    if not all(one in ("triton.jit", "jit", "triton.jit()") for one in decorators) or not all(map(_literal, defaults)):
        raise ValueError(f"{function.name} may have @triton.jit above it and numbers as defaults, and nothing else")
    nodes = [one for statement in function.body for one in ast.walk(statement)]
    own = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    own |= {one.arg for one in ast.walk(given) if isinstance(one, ast.arg)}
    for node in nodes:
        if isinstance(node, NO_KERNEL) or (isinstance(node, ast.FunctionDef) and node is not function):
            raise ValueError(f"line {node.lineno}: a kernel has no `{ast.unparse(node).splitlines()[0]}`")
        if isinstance(node, ast.Name) and node.id not in own | known:
            raise ValueError(
                f"line {node.lineno}: a kernel does not know {node.id!r}, but its arguments, constants, triton.language"
            )
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in modules:
            raise ValueError(f"{node.id!r} is the name of a module")
        if isinstance(node, ast.Attribute):
            _check_attribute(node, modules)


def _check_attribute(node: ast.Attribute, modules: dict[str, ModuleType]) -> None:
    """Only what triton.language has for kernels, and what a tensor of it has."""
    import triton.language as tl

    base: Any = modules.get(node.value.id) if isinstance(node.value, ast.Name) else None
    if isinstance(node.value, ast.Attribute) and isinstance(node.value.value, ast.Name):
        outer = modules.get(node.value.value.id)
        base = getattr(outer, node.value.attr, None) if isinstance(outer, ModuleType) else None
    if isinstance(base, ModuleType):
        found = getattr(base, node.attr, None)
        inner = getattr(found, "__name__", "") in ("triton.language", "triton.language.math")
        good = found is not None and (not isinstance(found, ModuleType) or inner)
    else:
        good = node.attr in {*dir(tl.tensor), *dir(tl.dtype), *OF_A_VALUE} - {"handle"}
    if not good or node.attr.startswith("_"):
        raise ValueError(f"line {node.lineno}: a kernel has no `{ast.unparse(node)}`")


def _modules(kept: list[ast.stmt]) -> dict[str, ModuleType]:
    """The modules that the file's names stand for."""
    made: dict[str, Any] = {}
    for node in kept:
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), "<imports>", "exec"), made)
    return {name: one for name, one in made.items() if isinstance(one, ModuleType)}


def _bound(node: ast.stmt) -> Iterator[str]:
    """Names that a statement of the file defines."""
    if isinstance(node, ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    else:
        yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))


def _binds(node: ast.stmt, name: str) -> bool:
    """Whether a statement gives that name to something, otherwise than within a kernel."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return node.name == name
    simple = isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Import | ast.ImportFrom)
    return simple and name in set(_bound(node))
