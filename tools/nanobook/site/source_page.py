"""A source file as a page: its docstring as text, then its code, with a heading for each class and function."""

from __future__ import annotations

import ast
from pathlib import Path

from nanobook.site.source_index import anchor
from nanobook.source import Definition, lines_of, parse


def page(name: str, path: Path) -> str:
    """The Markdown of the page for a Python file. name: its path from the book's root."""
    tree = parse(path)
    lines = [f"# {name}", "", *(ast.get_docstring(tree) or "").split("\n"), ""]
    body = tree.body[1:] if ast.get_docstring(tree) else tree.body
    plain: list[ast.stmt] = []
    for node in body:
        if isinstance(node, Definition):
            lines += _listing(name, plain) if plain else []
            plain = []
            lines += [f"({anchor(name, node.name)})=", f"## {node.name}", "", *_listing(name, [node])]
        else:
            plain.append(node)
    return "\n".join([*lines, *(_listing(name, plain) if plain else [])])


def _listing(name: str, nodes: list[ast.stmt]) -> list[str]:
    shown = lines_of(nodes[0], nodes[-1])
    file = name.rpartition("/")[2]
    return [f"```{{literalinclude}} {file}", f":lines: {shown[0]}-{shown[-1]}", ":lineno-match:", "```", ""]
