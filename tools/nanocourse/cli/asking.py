"""Lines that are written for reading, in colour or without, and questions that are asked at a terminal or from a pipe.

What is printed may hold what a learner typed: markup means nothing here, and control characters are shown, not obeyed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from nanoinfer.cli.errors import Refused
from nanoinfer.cli.terminal import Output, is_terminal, visible

T = TypeVar("T")
COLOURS = {"good": "green", "bad": "bold red", "quiet": "dim"}


class Lines:
    """Standard output, line by line. plain: no colours, on a terminal either."""

    def __init__(self, plain: bool) -> None:
        self._out = Output()
        self._console: Any = None
        if self._out.terminal and not plain:
            from rich.console import Console

            self._console = Console(highlight=False, markup=False, emoji=False)  # which looks at NO_COLOR itself

    def line(self, text: str, kind: str = "") -> None:
        """One line; its kind is told by a colour, and never by a colour alone."""
        text = visible(text.replace("\n", " "))
        if self._console is None or kind not in COLOURS:
            self._out.write(text + "\n")
        else:
            from rich.text import Text

            self._console.print(Text(text, style=COLOURS[kind]), soft_wrap=True)


def ask(question: str, parse: Callable[[str], T | None], allowed: str) -> T | None:
    """An answer that `parse` takes; None at the end of input. Asked again at a terminal, refused from a pipe."""
    out = Output()
    while True:
        out.write(question)
        line = sys.stdin.readline() if sys.stdin is not None else ""
        if not is_terminal(sys.stdin):
            out.write("\n")
        if not line:
            return None
        answer = parse(line)
        if answer is not None:
            return answer
        if not is_terminal(sys.stdin):
            raise Refused(f"an answer must be {allowed}, not {line.strip()!r}")
        out.write(f"   It must be {allowed}.\n")
