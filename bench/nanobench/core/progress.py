"""How far a run is: a bar with the time left on a terminal, a line a batch elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Bar:
    """`say` prints a line above the bar, `advance` moves it. On no terminal both print plain lines."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=True)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal, transient=True)
        self._task = self._bar.add_task("measuring", total=None)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Print a line of results."""
        self._console.print(line, markup=False, highlight=False)

    def advance(self, done: int, total: int, left: str) -> None:
        """`done` of `total` cases are measured; what is left, in words."""
        self._bar.update(self._task, completed=done, total=total, description=left)
        if not self._console.is_terminal:
            self.say(f"{done} of {total} cases done; {left}")
