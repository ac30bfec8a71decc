"""The package as a reader meets it: the chapter of each module, its lines of code, and what it imports.

This imports nothing but the standard library: the tests of the import graph take the table of chapters from here.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "nanoinfer"

# The chapter that each module belongs to. A module imports modules of chapters up to its own.
CHAPTER = {
    "config": 1, "requests": 1, "tokenizer": 1, "prompts": 1, "devices": 1, "locate": 1, "model": 1, "weights": 1,
    "state": 1, "sampling": 1, "naive": 1, "runner": 1, "host": 1, "engine": 1,
    "dense": 2,
    "paged": 3, "paged_kernels": 3, "paged_twins": 3,
    "graphs": 4, "sampling_kernels": 4, "fused": 4,
}  # fmt: skip
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Of no chapter: they put all chapters together. `proof` and `stand_in` are for tests and for learning: no engine
# needs either.
OUTSIDE = {"__init__", "__main__", "llm", "memories", "cli", "course", "reading", "proof", "stand_in"}


def modules(package: Path = PACKAGE) -> list[str]:
    """The chapters' modules that exist, in the chapters' order."""
    return [name for name in CHAPTER if (package / f"{name}.py").is_file()]


def imports_of(path: Path) -> set[str]:
    """Modules of the package that a file imports, at any depth of the code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nanoinfer"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("nanoinfer.")}
    return found


def code_lines(source: str) -> int:
    """Lines that hold code: no blank ones, no comments, no docstrings."""
    lines: set[int] = set()
    skip = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
        tokenize.ENCODING,
    }  # fmt: skip
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skip:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            doc = node.body[0]
            lines -= set(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
    return len(lines)


def lines_of_modules(package: Path = PACKAGE) -> dict[str, int]:
    """Lines of code of each module of a chapter."""
    return {name: code_lines((package / f"{name}.py").read_text(encoding="utf-8")) for name in modules(package)}


def lines_of_chapter(chapter: int, package: Path = PACKAGE) -> int:
    """Lines of code that a chapter adds."""
    return sum(lines for name, lines in lines_of_modules(package).items() if CHAPTER[name] == chapter)


def import_graph(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Which modules of the chapters each of them imports."""
    present = set(modules(package))
    return {name: imports_of(package / f"{name}.py") & present for name in modules(package)}


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph without the arrows that follow from others: a -> c is left out where a -> b -> c is there."""
    reach: dict[str, set[str]] = {}

    def below(name: str) -> set[str]:
        if name not in reach:
            reach[name] = set().union(*({other} | below(other) for other in graph[name]))
        return reach[name]

    return {
        name: {n for n in needed if not any(n in below(other) for other in needed)} for name, needed in graph.items()
    }
