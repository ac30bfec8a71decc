"""The progress of a run: a bar with the time left on a terminal, a line each minute elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

SILENCE_S = 60  # between two lines of progress, where there is no terminal


class Bar(Progress):
    """Its console prints lines above it, `advance_to` moves it. Without a terminal both print plain lines."""

    def __init__(self) -> None:
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        console = Console(highlight=False, markup=False, soft_wrap=True)
        super().__init__(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.work = self.add_task("measuring", total=None)
        self._began = self._said = time.monotonic()

    def advance_to(self, share: float, left: str) -> None:
        """A share of the work is done, which says how long the rest will take; `left` is what it is."""
        now = time.monotonic()
        taken = now - self._began
        left = f"{left}, about {taken * (1 / share - 1):.0f} s" if share else left
        self.update(self.work, completed=share, total=1.0, description=left)
        if self.disable and now - self._said >= SILENCE_S:
            self._said = now
            self.console.print(f"{taken:.0f} s: {left}")
