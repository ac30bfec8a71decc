"""Pages of lies: a folder beside a chapter's text with a small right program, and wrong ones that differ in one method.

Its module `catalogue` has `LIES` by name. Each has `threads`, where it was reported; `sides()`, what is true and what
the right one and the wrong one tell; and `lines()`, these as the page shows them. `check(one)` raises AssertionError
for what is wrong, and `SUBJECTS` are what it is shown on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nanocourse.exercises.chapters import run_folder


def main(folder: Path, names: list[str]) -> int:
    """Print these lies, or all. Returns 1 where one does not lie, or the right one does; 2 for an unknown name."""
    known = run_folder(folder)("catalogue").LIES
    if unknown := [name for name in names if name not in known]:
        print(f"{folder.name}: {unknown[0]!r} is none of {', '.join(known)}", file=sys.stderr)
        return 2
    odd = False
    for name in names or known:
        lie = known[name]
        print(f"{name}  {', '.join(lie.threads)}", *lie.lines(), sep="\n  ")
        truth, right, wrong = lie.sides()
        if right != truth or wrong == truth:
            odd = True
            print("  UNEXPECTED: the wrong one tells the truth, or the right one does not")
    return int(odd)


def blocks(folder: Path) -> Callable[[str], Callable[[], None]]:
    """Blocks for a page, as a module's `__getattr__`: `stale_map` prints the lie called stale-map, `verdicts` all."""
    catalogue = run_folder(folder)("catalogue")

    def block(name: str) -> Callable[[], None]:
        if name == "verdicts":
            return partial(_verdicts, catalogue.check, catalogue.SUBJECTS)
        if (lie := catalogue.LIES.get(name.replace("_", "-"))) is None:
            raise AttributeError(name)
        return lambda: print(*lie.lines(), sep="\n")

    return block


def _verdicts(check: Callable[[object], None], subjects: dict[str, object]) -> None:
    """Print what a test says of each subject."""
    for name, subject in subjects.items():
        try:
            check(subject)
            verdict = "passes"
        except AssertionError as found:
            verdict = str(found)
        print(f"{name:{max(map(len, subjects)) + 2}}{verdict}")
