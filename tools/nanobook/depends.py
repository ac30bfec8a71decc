"""Which files a test depends on: all that its imports, and the names in its strings, lead to.

A `Part` is a file of the repository, or one definition in a file of tests, since two tests in one file need different
things. Three kinds of edge lead from part to part: an import; a string that names a module, as in
`"nanoinfer.engine.engine:Engine.step"` or behind `python -m`; a string that names a file or a folder, as in
`root / "chapters" / "syllabus.toml"`. READS adds what a module reads by a path that it computes.
"""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from itertools import pairwise
from pathlib import Path, PurePosixPath

from nanobook.source import Definition, docstring_lines, imported, lines_of, module_finder, modules, parse

SOURCES = ("", "bench", "tools")  # folders of the repository that hold packages
TESTS = "tests/"
RECORDS = {"tests/proofs.json", ".ci/seconds.tsv"}
ALWAYS = "at import"  # the name of what runs for every test of a file: its hooks, marks and bare statements
MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)+(:[\w.]+)?")  # and a file without folders, as in "small.py"
FILE = re.compile(r"[\w.-][\w.*?-]*(/[\w.*?-]+)*\.\w+")
CODE_IMPORTS = re.compile(r"(?:^|;)\s*(?:from|import)\s+([\w.]+)", re.M)  # in code for `python -c`
Import = ast.Import | ast.ImportFrom

# What is read by a path that is computed. A field in braces matches anything, or what a test is narrowed to: one
# exercise, one notebook.
BOOK = ("chapters/*", "figures/*", "notebooks/*", "bench/results/*", "bench/README.md", "README.md")
CODE = ("nanoinfer/*", "bench/nanobench/*", "tools/*", "pyproject.toml")
READS = {
    "nanoinfer/model/hub.py": ("nanoinfer/data/small/*",),
    "nanoinfer/serve/recording.py": ("nanoinfer/serve/page/*",),
    "chapters/04-cuda-graphs/scenes.py": ("chapters/04-cuda-graphs/lies/*.py",),
    "chapters/05-queue/exercises/ex7_starved.py": ("chapters/05-queue/lies/*.py",),
    "chapters/08-parallel/exercises/liars.py": ("chapters/08-parallel/lies/*.py",),
    "tools/nanocourse/exercises/chapters.py": (
        "chapters/0{chapter}-*/exercises/ex{number}_*", "chapters/0{chapter}-*/exercises/chapter.json",
        "chapters/0{chapter}-*/exercises/wrong.toml",
    ),
    "tools/nanocourse/authoring/chapter_strength.py": ("chapters/0{chapter}-*/exercises/strength.json",),
    "tools/nanocourse/learner/folder.py": ("chapters/*",),
    "tools/nanocourse/learner/quiz.py": ("chapters/*/exercises/quiz.json",),
    "tools/nanocourse/learner/predict.py": ("chapters/*/exercises/predict.py",),
    "tools/nanocourse/release/templates/__init__.py": ("tools/nanocourse/release/templates/*",),
    "tools/nanocourse/release/wheels.py": (*BOOK, *CODE),
    "tools/nanobook/notebooks.py": ("notebooks/{notebook}.py", "notebooks/{notebook}.ipynb"),
    "tools/nanobook/syllabus.py": ("chapters/syllabus.toml", "nanoinfer/*.py"),
    "tools/nanobook/text/check_text.py": (*BOOK, *CODE, "CONTRIBUTING.md"),
    "tools/nanobook/figures/diagrams.py": (*BOOK, *CODE),
    "tools/nanobook/site/contents.py": (*BOOK, "nanoinfer/*.py", "tools/nanobook/site/*"),
    "tests/book/chapter_pages.py": BOOK,
    "tests/book/test_imports.py": ("chapters/*", *CODE, "tests/*.py"),
    "tests/book/test_packaging.py": (*BOOK, *CODE),
    "tests/book/test_readme.py": (*BOOK, *CODE),
    "tests/book/test_pages.py": ("tests/*", "*.md"),
    "tests/cli/commands.py": ("nanoinfer/__main__.py",),
    "tests/course/test_references.py": ("chapters/*",),
    "tests/engine/test_fake_graph.py": ("tests/engine/test_fake_graph.py",),
    "tests/engine/test_in_the_interpreter.py": ("tests/engine/*.py",),
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Part:
    """A file, by its path from the root of the repository; with a name, one definition in it."""

    path: str
    name: str = ""


def tracked(root: Path) -> tuple[str, ...]:
    """Return the paths of all files in a repository that git does not ignore, but for records of its own runs."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    return tuple(sorted(path for path in set(listed) - RECORDS if (root / path).is_file()))


class Dependencies:
    """What each part of a repository needs. Files are read once: make a new instance after they have changed."""

    def __init__(self, root: Path, reads: Mapping[str, tuple[str, ...]] = READS) -> None:
        self.root, self.reads = root, reads
        self.files = tracked(root)
        packages = [init.parent for at in SOURCES for init in sorted((root / at).glob("*/__init__.py"))]
        self._modules = {name: path for folder in packages for name, path in modules(folder.name, folder).items()}
        self._names = {path.relative_to(root).as_posix(): name for name, path in self._modules.items()}
        self._module_of = module_finder(self._modules)
        self._trees: dict[str, ast.Module] = {}
        self._needed: dict[Part, set[Part]] = {}
        self._defined: dict[str, dict[str, list[ast.stmt]]] = {}
        self._matched: dict[str, tuple[str, ...]] = {}
        self._paths = frozenset(self.files)

    def of(self, start: Iterable[Part], narrowed: Mapping[str, str] | None = None) -> set[Part]:
        """Return all parts that some parts lead to, themselves included.

        narrowed: values for the fields in READS. Raises SyntaxError or OSError if a file on the way cannot be read.
        """
        found: set[Part] = set()
        todo = list(start)
        while todo:
            part = todo.pop()
            if part not in found:
                found.add(part)
                if part not in self._needed:
                    self._needed[part] = set(self._definition(part) if part.name else self._file(part.path))
                todo += self._needed[part]
                todo += self._read(part.path, narrowed or {})
        return found

    def digest(self, parts: Iterable[Part], *also: str) -> str:
        """Return a hash of what the parts hold, their names, and further words."""
        sha = hashlib.sha256("\0".join(also).encode())
        for part in sorted(parts):
            held = self._text_of(part).encode() if part.name else (self.root / part.path).read_bytes()
            sha.update(f"\0{part.path}\0{part.name}\0{len(held)}\0".encode() + held)
        return sha.hexdigest()

    # Files

    def _file(self, path: str) -> Iterator[Part]:
        if path.endswith(".py"):
            for full in imported(self.root / path, self._names.get(path, "")):
                yield from self._module(self._module_of(full))
            yield from self._strings(self._tree(path), path)
        elif path.endswith((".json", ".toml")):
            for name in re.findall(r"([\w.]+\.\w+):\w", (self.root / path).read_text(encoding="utf-8")):
                yield from self._module(self._module_of(name))

    def _tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = parse(self.root / path)
        return self._trees[path]

    def _module(self, name: str | None) -> Iterator[Part]:
        """A module, and the packages around it, which run before it."""
        while name:
            if name in self._modules:
                yield Part(self._modules[name].relative_to(self.root).as_posix())
            name = name.rpartition(".")[0]

    def _strings(self, tree: ast.AST, path: str) -> Iterator[Part]:
        """The modules and files that strings in some code name, docstrings left out."""
        skipped = {line for node in ast.walk(tree) for line in docstring_lines(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.List | ast.Tuple):
                words = list(map(_joined, node.elts))
                run = (word for option, word in pairwise(words) if option == "-m")
                yield from (part for word in run for part in self._module(f"{word}.__main__"))
            text = _joined(node)
            if text and node.lineno not in skipped:  # type: ignore[attr-defined]
                if MODULE.fullmatch(text):
                    yield from self._module(self._module_of(text.partition(":")[0]))
                if FILE.fullmatch(text):
                    yield from map(Part, self._near(path, text))
                for name in CODE_IMPORTS.findall(text):
                    yield from self._module(self._module_of(name))

    def _near(self, path: str, text: str) -> tuple[str, ...]:
        """The files that a string in `path` names, seen from the closest folder around it that has any."""
        for folder in PurePosixPath(path).parents:
            if found := self._matching(str(folder / text)):
                return found
        return ()

    def _matching(self, pattern: str) -> tuple[str, ...]:
        if pattern not in self._matched:
            wanted = re.compile(translate(pattern))
            literal = pattern.partition("*")[0].partition("?")[0]
            found = (pattern,) if literal == pattern else self.files
            self._matched[pattern] = tuple(one for one in found if one in self._paths and wanted.match(one))
        return self._matched[pattern]

    def _read(self, path: str, narrowed: Mapping[str, str]) -> Iterator[Part]:
        for pattern in self.reads.get(path, ()):
            wanted = re.sub(r"{(\w+)}", lambda field: narrowed.get(field[1], "*"), pattern)
            yield from map(Part, self._matching(wanted))

    # Definitions: what a test uses of its own file, of tests' files that it imports from, and of conftest.py

    def _definition(self, part: Part) -> Iterator[Part]:
        around = [f"{folder}/conftest.py" for folder in PurePosixPath(part.path).parents]
        beside = [path for path in around if path in self.files and path != part.path]
        yield from (Part(path, ALWAYS) for path in (part.path, *beside))
        for statement in self._statements(part):
            if isinstance(statement, Import):
                yield from self._imported(statement, part.path, part.name)
                continue
            yield from self._strings(statement, part.path)
            for node in ast.walk(statement):
                if isinstance(node, Import):
                    yield from self._imported(node, part.path)
            words = _words(statement)
            for path in (part.path, *beside):
                yield from (Part(path, name) for name in self._definitions(path).keys() & words)

    def _imported(self, node: Import, path: str, bound: str = "") -> Iterator[Part]:
        """What an import brings; bound: only this one of its names."""
        for alias in node.names:
            if bound in ("", ALWAYS, alias.asname or alias.name.partition(".")[0]):
                module = getattr(node, "module", None)
                home = self._modules.get(module or "")
                file = home.relative_to(self.root).as_posix() if home else ""
                if file.startswith(TESTS) and alias.name in self._definitions(file):
                    yield Part(file, alias.name)
                else:
                    yield from self._module(self._module_of(f"{module}.{alias.name}" if module else alias.name))

    def _definitions(self, path: str) -> dict[str, list[ast.stmt]]:
        """The statements that bind each name of a file; under ALWAYS, those that run for every test in it."""
        if path not in self._defined:
            found: dict[str, list[ast.stmt]] = {ALWAYS: []}
            for statement in self._tree(path).body:
                for name in _bound(statement) or [ALWAYS]:
                    found.setdefault(ALWAYS if name.startswith("pytest") else name, []).append(statement)
            self._defined[path] = found
        return self._defined[path]

    def _statements(self, part: Part) -> list[ast.stmt]:
        """The statements of a definition; of `Class.test`, the class without its other tests."""
        owner, _, test = part.name.partition(".")
        found = self._definitions(part.path).get(owner, [])
        if not test:
            return found
        inner = [one for outer in found if isinstance(outer, ast.ClassDef) for one in outer.body]
        return [one for one in inner if not getattr(one, "name", "").startswith("test") or one.name == test]  # type: ignore[attr-defined]

    def _text_of(self, part: Part) -> str:
        lines = (self.root / part.path).read_text(encoding="utf-8").splitlines()
        own = [one for one in self._statements(part) if not isinstance(one, Import)]
        return "\n".join(lines[at - 1] for one in own for at in lines_of(one))


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a statement binds at the top of a file."""
    if isinstance(statement, Definition):
        return [statement.name]
    if isinstance(statement, Import):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return [node.id for node in stored]


def _words(statement: ast.stmt) -> set[str]:
    """Names that code may take from its file: variables, and fixtures by parameters or by strings."""
    found = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("usefixtures", "getfixturevalue"):
            found |= set(map(_joined, node.args))
    return found


def _joined(node: ast.AST) -> str:
    """The text of a string, or of `folder / "name"` with `*` for what is computed; empty for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        parts = [_joined(node.left), _joined(node.right) or "*"]
        return "/".join(filter(None, parts)) if parts[1] != "*" or parts[0] else ""
    return ""
