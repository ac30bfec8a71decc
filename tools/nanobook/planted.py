"""Mutants of the engine: drawn in equal numbers from its modules, stored by what they replace, and found again."""

from __future__ import annotations

import ast
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanocourse.authoring.mutants import Mutant as Made
from nanocourse.authoring.mutants import drop_inert, mutants

ENGINE = Path("nanoinfer")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Part = ast.stmt | ast.expr


@dataclass(frozen=True)
class Mutant:
    """A mistake: one part of a function, replaced. at: its place among the equal parts of that function."""

    file: str
    function: str
    was: str
    becomes: str
    at: int
    name: str


@dataclass(frozen=True)
class Place:
    """Where a mutant applies."""

    path: Path
    function: Function
    part: Part

    @property
    def lines(self) -> range:
        """Lines that run when the mutated part does. Defaults are evaluated at import, so they count as the body."""
        part, function = self.part, self.function
        if any(node is part for node in ast.walk(function.args)):
            start = getattr(function.body[0], "lineno", function.lineno)
            return range(start, (function.end_lineno or start) + 1)
        return range(part.lineno, (part.end_lineno or part.lineno) + 1)

    def mutated(self, mutant: Mutant) -> bytes:
        """The file's text with the mistake in it."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        part, text = self.part, mutant.becomes if isinstance(self.part, ast.stmt) else f"({mutant.becomes})"
        assert part.end_lineno is not None
        before = b"".join(lines[: part.lineno - 1]) + lines[part.lineno - 1][: part.col_offset]
        after = lines[part.end_lineno - 1][part.end_col_offset :] + b"".join(lines[part.end_lineno :])
        return before + text.encode() + after


def functions_of(source: str) -> dict[str, list[Function]]:
    """Functions and methods by qualified name, without docstrings, annotations and decorators."""
    tree = ast.parse(source)
    drop_inert(tree)
    found: dict[str, list[Function]] = defaultdict(list)

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                found[prefix + child.name].append(child)
            elif isinstance(child, ast.stmt):
                collect(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

    collect(tree, "")
    for node in ast.walk(tree):
        if isinstance(node, Function):
            node.decorator_list = []
    return found


def parts(node: ast.AST) -> Iterator[Part]:
    """The statements in a node and the expressions in its head: all that a mutant can replace."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Part):
            yield child
        else:
            yield from parts(child)


def compound(part: Part) -> bool:
    """Whether statements stand in this statement."""
    return isinstance(part, ast.stmt) and any(isinstance(node, ast.stmt) for node in list(ast.walk(part))[1:])


def label(part: Part) -> str:
    """A part as stored; of a compound statement, the line that opens it."""
    text = ast.unparse(part)
    return text.split("\n")[0] if compound(part) else text


def equal_parts(functions: list[Function], text: str) -> list[tuple[Function, Part]]:
    """All parts of these functions with this label, in the order of the source."""

    def within(node: ast.AST) -> Iterator[Part]:
        for part in parts(node):
            yield part
            if compound(part):
                yield from within(part)

    return [(function, part) for function in functions for part in within(function) if label(part) == text]


def difference(one: ast.AST, other: ast.AST) -> tuple[Part, Part]:
    """The smallest part in which a function and its mutant differ."""
    for was, becomes in zip(parts(one), parts(other), strict=True):
        if ast.unparse(was) != ast.unparse(becomes):
            return difference(was, becomes) if compound(was) and compound(becomes) else (was, becomes)
    raise ValueError("no part differs")


def mutants_of(file: str, source: str, rng: random.Random) -> Iterator[Mutant]:
    """A module's mutants in random order: first a function, by its size, then one of that function's mutants.

    Left out are mutants of assertions, of declarations without a value and of `...`: none changes any behaviour.
    """
    found = {name: functions for name, functions in functions_of(source).items() if len(functions) == 1}
    sizes = {name: len(list(ast.walk(function))) for name, (function,) in found.items()}
    left: dict[str, list[Made]] = {}
    while sizes:
        (name,) = rng.choices(list(sizes), list(sizes.values()))
        (function,) = found[name]
        if name not in left:
            made = mutants(ast.unparse(function))
            left[name] = rng.sample(made, len(made))
        if not left[name]:
            del sizes[name]
            continue
        one = left[name].pop()
        was, becomes = difference(function, ast.parse(one.source).body[0])
        if isinstance(was, ast.Assert) or label(was) == "..." or (isinstance(was, ast.AnnAssign) and not was.value):
            continue
        at = [part for _, part in equal_parts([function], label(was))].index(was)
        yield Mutant(file, name, label(was), ast.unparse(becomes), at, one.name)


def find(mutant: Mutant, engine: Path) -> Place | None:
    """The place of a mutant: in its own file, or else in the only file with such a part in such a function."""
    own = engine / mutant.file
    for paths in ([own] if own.is_file() else [], sorted({*engine.rglob("*.py")} - {own})):
        found = []
        for path in paths:
            functions = functions_of(path.read_text(encoding="utf-8")).get(mutant.function, [])
            equal = equal_parts(functions, mutant.was)
            found += [Place(path, *equal[mutant.at])] if mutant.at < len(equal) else []
        if len(found) == 1:
            return found[0]
    return None


def drawn(engine: Path, count: int, seed: int) -> list[Mutant]:
    """Draw mutants in rounds, one from each module that has any left."""
    rng = random.Random(seed)
    files = {path.relative_to(engine).as_posix(): path.read_text(encoding="utf-8") for path in engine.rglob("*.py")}
    left = {file: mutants_of(file, source, rng) for file, source in sorted(files.items())}
    chosen: list[Mutant] = []
    while left and len(chosen) < count:
        for file in rng.sample(list(left), len(left)):
            mutant = next(left[file], None)
            if mutant is None:
                del left[file]
            elif len(chosen) < count:
                chosen.append(mutant)
    return sorted(chosen, key=lambda mutant: (mutant.file, mutant.function, mutant.name))


def load(path: Path) -> list[Mutant]:
    """The stored mutants."""
    return [Mutant(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
