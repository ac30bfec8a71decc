"""Names that the engine's source defines: which of them a section of the text mentions, and where they stand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from nanobook.source import Definition, lines_of, parse
from nanobook.syllabus import engine_root, file_of

EXCERPT = re.compile(r'cog excerpt\("nanoinfer\.([\w.]+):([\w.]+)"')
CODE = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")


@dataclass(frozen=True)
class Named:
    """A class, a function or a method of the engine."""

    module: str  # as `engine.engine`
    path: str  # as `Engine.step`
    lines: int

    @property
    def file(self) -> str:
        """The path of its file."""
        return file_of(self.module)

    @property
    def anchor(self) -> str:
        """The label of its heading, or of its class's heading, on the page of its file."""
        return anchor(self.file, self.path.partition(".")[0])


def anchor(file: str, name: str) -> str:
    """The label of a class or function on the page of its file."""
    kind = "class" if name.lstrip("_")[:1].isupper() else "function"  # labels know no capitals
    return re.sub(r"[^a-z0-9]+", "-", f"source-{file.removesuffix('.py')}-{kind}-{name}".lower())


class Index:
    """All names of the engine's modules, by the words that a text uses for them."""

    def __init__(self, modules: Iterable[str]) -> None:
        """modules: dotted names within `nanoinfer`, such as `model.gpt2`; a text calls it `gpt2`."""
        self._exact: dict[tuple[str, str], Named] = {}
        self._by_word: dict[str, list[Named]] = {}
        self._methods: set[str] = set()
        for module in modules:
            for node in parse(engine_root() / file_of(module)).body:
                if isinstance(node, Definition):
                    self._add(module, node.name, node, node.name, f"{module.rpartition('.')[2]}.{node.name}")
                if isinstance(node, ast.ClassDef):
                    for inner in node.body:
                        if isinstance(inner, Definition):
                            self._add(module, f"{node.name}.{inner.name}", inner, f"{node.name}.{inner.name}")
                            self._methods.add(inner.name)

    def _add(self, module: str, path: str, node: Definition, *words: str) -> None:
        named = self._exact[module, path] = Named(module, path, len(lines_of(node)))
        for name in words:
            self._by_word.setdefault(name, []).append(named)

    def of(self, section: str) -> list[Named]:
        """What a section mentions, each once: first what it quotes, then what it names in backticks.

        A name that several modules define is ignored, and so is a function's that classes have as a method.
        """
        found: dict[tuple[str, str], Named] = {}
        for module, path in EXCERPT.findall(section):
            if (module, path) in self._exact:
                found[module, path] = self._exact[module, path]
        for name in CODE.findall(re.sub(r"```.*?```", "", section, flags=re.S)):
            meant = self._by_word.get(name.removeprefix("nanoinfer."), [])
            if len(meant) == 1 and name not in self._methods:
                found.setdefault((meant[0].module, meant[0].path), meant[0])
        whole = {(named.module, named.path) for named in found.values()}
        return [n for n in found.values() if (n.module, n.path.partition(".")[0]) not in whole or "." not in n.path]
