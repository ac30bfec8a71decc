"""`chapters/syllabus.toml`: which module of the engine belongs to which chapter."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from nanobook.source import code_lines, folder_of
from nanocourse.exercises.chapters import root

ENGINE = "nanoinfer"


def engine_root() -> Path:
    """The folder that the package `nanoinfer` lies in."""
    return folder_of(ENGINE).parent


def file_of(module: str) -> str:
    """The path of an engine module from there: `nanoinfer/model/gpt2.py` for `model.gpt2`."""
    return f"{ENGINE}/{module.replace('.', '/')}.py"


@dataclass(frozen=True)
class Chapter:
    """A chapter of the engine. modules: dotted names within `nanoinfer`, in the order in which they are read.

    labs: modules that build on the chapter, and that it does without.
    """

    number: int
    title: str
    modules: tuple[str, ...]
    labs: tuple[str, ...] = ()

    def lines(self, of_labs: bool = False) -> int:
        """Lines of code that the chapter adds, or those of its labs."""
        files = (engine_root() / file_of(name) for name in (self.labs if of_labs else self.modules))
        return sum(code_lines(file.read_text(encoding="utf-8")) for file in files)


@dataclass(frozen=True)
class Syllabus:
    """All chapters in order, and the modules of none. There, a package stands for its modules."""

    chapters: tuple[Chapter, ...]
    outside: tuple[str, ...]

    def chapter_of(self, module: str) -> int | None:
        """The number of a module's chapter; None for a module of no chapter. KeyError where it is not listed."""
        for chapter in self.chapters:
            if module in chapter.modules + chapter.labs:
                return chapter.number
        if any(f"{module}.".startswith(f"{name}.") for name in self.outside):
            return None
        raise KeyError(module)


def syllabus(path: Path | None = None) -> Syllabus:
    """The syllabus of a file, by default of this book."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    data = tomllib.loads((path or root() / "chapters" / "syllabus.toml").read_text(encoding="utf-8"))
    chapters = tuple(
        Chapter(c["number"], c["title"], tuple(c["modules"]), tuple(c.get("labs", ()))) for c in data["chapter"]
    )
    return Syllabus(chapters, tuple(data["outside"]["modules"]))
