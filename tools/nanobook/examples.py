"""What a chapter's own code says: `chapters/NN-name/example.py` is run, and its page holds what came out.

A page's block `printed("block")` is what the function `block` prints; a number marked `01-naive tied` is what
`NUMBERS["tied"]` of that file gives. So the examples of the text are run whenever the text is checked.
"""

from __future__ import annotations

import importlib.util
import io
import sys
from contextlib import redirect_stdout
from functools import lru_cache
from pathlib import Path
from types import ModuleType

EXAMPLE = "example.py"


def printed(file: Path, name: str) -> list[str]:
    """The lines that the function `name` of a Python file prints. ValueError where there is no such function."""
    function = getattr(load(file), name, None)
    if not callable(function):
        raise ValueError(f"{file.name} has no function {name!r} whose output could stand here")
    out = io.StringIO()
    with redirect_stdout(out):
        function()
    return [line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")]


def number(file: Path, words: list[str]) -> str:
    """What NUMBERS of a Python file has under these words. ValueError where it has nothing."""
    numbers, key = getattr(load(file), "NUMBERS", {}), " ".join(words)
    if key not in numbers:
        raise ValueError(f"{file.parent.name}/{file.name} has no number {key!r}, only {', '.join(numbers)}")
    return str(numbers[key]())


def load(file: Path) -> ModuleType:
    """A file's code, run once a process and version of the file; `01-naive` is no name that `import` could take."""
    if not file.is_file():
        raise ValueError(f"there is no {file.parent.name}/{file.name}")
    return _load(file.resolve(), file.stat().st_mtime_ns)


@lru_cache
def _load(file: Path, version: int) -> ModuleType:
    name = f"{file.parent.name}-{file.stem}".replace("-", "_")
    spec = importlib.util.spec_from_file_location(f"chapter_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up there
    spec.loader.exec_module(module)
    return module
