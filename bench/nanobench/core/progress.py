"""The progress of a run: a bar with the time left on a terminal, a line for each batch elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Bar(Progress):
    """`say` prints a line above the bar, `advance_to` moves it. Without a terminal both print plain lines."""

    def __init__(self) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        console = Console(highlight=False, markup=False, soft_wrap=True)
        super().__init__(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.cases = self.add_task("measuring", total=None)

    def say(self, line: str) -> None:
        """Print a line of results."""
        self.console.print(line)

    def advance_to(self, done: int, total: int, left: str) -> None:
        """`done` of `total` cases are measured; `left` says what is left."""
        self.update(self.cases, completed=done, total=total, description=left)
        if self.disable:
            self.say(f"{done} of {total} cases done; {left}")
