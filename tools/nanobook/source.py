"""Python source, parsed: its definitions, its lines of code, and which modules import which."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("nanoinfer", "nanobench", "nanocourse", "nanobook")
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Graph = dict[str, set[str]]
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def lines_of(first: ast.stmt, last: ast.stmt | None = None) -> range:
    """Numbers of the lines from one statement to another, decorators included."""
    start = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
    return range(start, ((last or first).end_lineno or start) + 1)


def docstring_lines(node: ast.AST) -> range:
    """Numbers of the lines of the docstring of a module, a class or a function; empty where there is none."""
    documented = isinstance(node, ast.Module | Definition) and ast.get_docstring(node)
    return lines_of(node.body[0]) if documented else range(0)  # type: ignore[attr-defined]


def measured(source: str) -> tuple[int, int]:
    """How many lines hold code, and how many tokens they have: no blank lines, no comments, no docstrings."""
    docstrings = set[int]().union(*map(docstring_lines, ast.walk(ast.parse(source))))
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    tokens = [token for token in found if token.type not in NO_CODE and token.start[0] not in docstrings]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)}), len(tokens)


def code_lines(source: str) -> int:
    """How many lines hold code."""
    return measured(source)[0]


def folder_of(package: str) -> Path:
    """Where an installed package lies. It is not imported."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def modules(package: str, folder: Path) -> dict[str, Path]:
    """All modules of a package by their dotted names; a subpackage bears the name of its folder."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder)
        if all((folder / parent / "__init__.py").is_file() for parent in inner.parents):
            found[".".join((package, *inner.with_suffix("").parts)).removesuffix(".__init__")] = path
    return found


def import_graph(files: Mapping[str, Path]) -> Graph:
    """Which of the modules each of them imports, within functions too; what only a type checker imports is left out."""
    module = module_finder(files)
    return {name: set(filter(None, map(module, imported(path, name)))) - {name} for name, path in files.items()}


def module_finder(files: Mapping[str, Path]) -> Callable[[str], str | None]:
    """A function that returns the module that a dotted name belongs to, or None if it belongs to none of the files.

    A name that a package takes from one of its modules counts as that module's.
    """
    passed_on = {
        f"{name}.{alias.asname or alias.name}": module
        for name, path in files.items()
        if path.name == "__init__.py"
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ImportFrom) and (module := _origin(node, name, path)) in files
        for alias in node.names
    }

    def module_of(full: str) -> str | None:
        while full not in files:
            if full in passed_on:
                return passed_on[full]
            full = full.rpartition(".")[0]
            if not full:
                return None
        return full

    return module_of


def imported(path: Path, name: str = "") -> Iterator[str]:
    """Dotted names of all that a file imports: `a.b.c` for `from a.b import c`. name: its own, as a module."""
    nodes: list[ast.AST] = [parse(path)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            nodes += node.orelse
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{_origin(node, name, path)}.{alias.name}" for alias in node.names)
        else:
            nodes += ast.iter_child_nodes(node)


def _origin(node: ast.ImportFrom, name: str, path: Path) -> str:
    """The dotted name of the module that names are imported from."""
    if not node.level:
        return node.module or ""
    parents = name.split(".")
    above = parents[: len(parents) - node.level + (path.name == "__init__.py")]
    return ".".join([*above, *([node.module] if node.module else [])])


def grouped(graph: Graph, group: Mapping[str, str]) -> Graph:
    """The graph of groups of modules, such as packages. Modules without a group are left out."""
    found: Graph = {name: set() for name in group.values()}
    for name, needed in graph.items():
        if name in group:
            found[group[name]] |= {group[other] for other in needed if other in group} - {group[name]}
    return found
