"""Pages of lies: a folder beside a chapter's text with a small right program, and wrong ones that differ in one method.

Its module `catalogue` has `LIES` by name: chapters 5 to 8 make them of the `Lie` below. `check(one)` raises
AssertionError for what is wrong, and `SUBJECTS` are what it is shown on. Chapter 4's lies are replayed, and have a
program of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nanocourse.exercises.chapters import run_folder


@dataclass(frozen=True)
class Lie:
    """One defect. threads: where it was reported. wrong, right: what lies, what does not. scene: what tells them apart.

    A chapter's own adds `lines()`, as the page shows it, and may say otherwise what one of them tells, or what is true.
    """

    threads: tuple[str, ...]
    wrong: Any
    scene: Any
    right: Any

    def tell(self, kind: Any) -> Any:
        """What one of this kind tells."""
        return self.scene(kind)

    def truth(self) -> Any:
        """What is true."""
        return self.tell(self.right)

    def sides(self) -> tuple[Any, Any, Any]:
        """What is true, and what the right one and the wrong one tell."""
        return self.truth(), self.tell(self.right), self.tell(self.wrong)


def main(file: str) -> None:
    """Print the lies that the command line names, or all.

    Exit code 1 where one does not lie, or the right one does; 2 for an unknown name.
    """
    folder, names = Path(file).resolve().parent, sys.argv[1:]
    known = run_folder(folder)("catalogue").LIES
    if unknown := [name for name in names if name not in known]:
        print(f"{folder.name}: {unknown[0]!r} is none of {', '.join(known)}", file=sys.stderr)
        sys.exit(2)
    odd = False
    for name in names or known:
        lie = known[name]
        print(f"{name}  {', '.join(lie.threads)}", *lie.lines(), sep="\n  ")
        truth, right, wrong = lie.sides()
        if right != truth or wrong == truth:
            odd = True
            print("  UNEXPECTED: the wrong one tells the truth, or the right one does not")
    sys.exit(odd)


def blocks(file: str) -> Callable[[str], Callable[[], None]]:
    """Blocks for a page, as a module's `__getattr__`: `stale_map` prints the lie called stale-map, `verdicts` all."""
    catalogue = run_folder(Path(file).resolve().parent)("catalogue")

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
