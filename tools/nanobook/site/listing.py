"""A source file as a page: its opening lines as text, then its parts, each class and function under its own heading."""

from __future__ import annotations

import ast
from pathlib import Path

from nanobook.site.objects import Definition, anchor


def page(name: str, path: Path) -> str:
    """The Markdown of the page for a Python file. name: its path from the book's root."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
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
    first = min([nodes[0].lineno, *(d.lineno for d in getattr(nodes[0], "decorator_list", []))])
    last = nodes[-1].end_lineno or nodes[-1].lineno
    file = name.rpartition("/")[2]
    return [f"```{{literalinclude}} {file}", f":lines: {first}-{last}", ":lineno-match:", "```", ""]
