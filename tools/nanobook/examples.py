"""Runs a chapter's own code, `chapters/NN-name/example.py`, for the pages that show its output.

The block `printed("block")` of a page is what the function `block` prints; a number marked `01-naive tied` is what
`NUMBERS["tied"]` of that file returns. So the examples of the text run whenever the text is checked.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from nanocourse.exercises.chapters import root, run_file

if TYPE_CHECKING:
    from nanobench.core.records import ResultsFile

EXAMPLE = "example.py"
T = TypeVar("T")
File = TypeVar("File", bound="ResultsFile")


def printed(file: Path, name: str) -> list[str]:
    """The lines that the function `name` of a Python file prints. ValueError if there is no such function."""
    function = getattr(load(file), name, None)
    if not callable(function):
        raise ValueError(f"{file.name} has no function {name!r} whose output could be shown")
    return list(_printed(function))


@lru_cache  # a chapter's text and its slides show the same output
def _printed(function: Callable[[], object]) -> tuple[str, ...]:
    out = io.StringIO()
    with redirect_stdout(out):
        function()
    return tuple(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))


def print_blocks(file: Path) -> None:
    """The blocks that the command line names, or all that the pages beside the file show, each below its name."""
    pages = file.parent / "README.md", *sorted(file.parent.glob("measurements.md"))
    texts = "".join(page.read_text(encoding="utf-8") for page in pages)
    shown = re.findall(r'\[\[\[cog printed\("(\w+)"\)', texts)
    if unknown := {*sys.argv[1:]}.difference(shown):
        sys.exit(f"no block is called {', '.join(sorted(unknown))}; there are {', '.join(shown)}")
    for name in sys.argv[1:] or shown:
        print(f"--- {name}", *printed(file, name), "", sep="\n", flush=True)


def number(file: Path, words: list[str]) -> str:
    """What NUMBERS of a Python file has under these words. ValueError if it has nothing there."""
    numbers, key = getattr(load(file), "NUMBERS", {}), " ".join(words)
    if key not in numbers:
        raise ValueError(f"{file.parent.name}/{file.name} has no number {key!r}, only {', '.join(numbers)}")
    return str(numbers[key]())


@cache
def results(kind: type[File], name: str, command: str) -> File:
    """A results file of the book. ValueError with the command of the bench that makes it."""
    path = root() / "bench" / "results" / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"no results file {name}.json: `python -m bench {command} --out bench/results/{name}.json`")
    return kind.load(path)


def only(records: Iterable[T], **fields: object) -> T:
    """The one record whose fields are these. ValueError if there is none, or several."""
    (found,) = [one for one in records if all(getattr(one, name) == value for name, value in fields.items())]
    return found


def load(file: Path) -> ModuleType:
    """A file as a module, run once for each version of the file: `import` cannot name a folder such as `01-naive`."""
    if not file.is_file():
        raise ValueError(f"there is no {file.parent.name}/{file.name}")
    return _load(file.resolve(), file.stat().st_mtime_ns)


@lru_cache
def _load(file: Path, version: int) -> ModuleType:
    return run_file(file, f"chapter_{file.parent.name}_{file.stem}".replace("-", "_"))
