"""Lines in colour or without, questions asked at a terminal or through a pipe, and errors as one sentence.

What is printed may hold what a learner typed: markup means nothing here, and control characters are shown, not obeyed.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from nanoinfer.cli.errors import Refused
from nanoinfer.cli.terminal import is_terminal, visible, write

T = TypeVar("T")
EVERY_S = 4.0
COLOURS = {"good": "green", "bad": "bold red", "quiet": "dim"}


class Lines:
    """Standard output, line by line. plain: no colours, on a terminal either."""

    def __init__(self, plain: bool) -> None:
        self._console: Any = None
        if is_terminal(sys.stdout) and not plain:
            from rich.console import Console

            self._console = Console(highlight=False, markup=False, emoji=False)  # it looks at NO_COLOR itself

    def line(self, text: str, kind: str = "") -> None:
        """One line; its kind is told by a colour, and never by a colour alone."""
        text = visible(text.replace("\n", " "))
        if self._console is None or not kind:
            write(text + "\n")
        else:
            self._console.print(text, style=COLOURS[kind], soft_wrap=True)


def given(text: str | None, parsers: Sequence[Callable[[str], T]]) -> list[T]:
    """Answers that an option gives, with commas between, one for each question; none where there is no option."""
    if text is None:
        return []
    answers, wanted = text.split(","), len(parsers)
    if len(answers) != wanted:
        raise Refused(f"there are {wanted} questions: give {wanted} answers with commas between, not {text!r}")
    return [parse(answer) for parse, answer in zip(parsers, answers, strict=True)]


def ask(question: str, parse: Callable[[str], T]) -> T | None:
    """An answer from standard input; None at its end. Asked again after one for which `parse` raises ValueError."""
    while True:
        write(question)
        line = sys.stdin.readline() if sys.stdin is not None else ""
        if not is_terminal(sys.stdin):
            write("\n")
        if not line:
            return None
        try:
            return parse(line)
        except ValueError as error:
            write(f"   {visible(str(error))}.\n")


def patience() -> Callable[[str], None]:
    """Takes what is going on, and says it on standard error where somebody has waited: a new line every few seconds."""
    last, said = time.monotonic(), ""

    def going_on(text: str) -> None:
        nonlocal last, said
        if text != said and time.monotonic() - last >= EVERY_S:
            print(f"... {visible(text)}", file=sys.stderr, flush=True)
            last, said = time.monotonic(), text

    return going_on


@contextmanager
def refusing() -> Iterator[None]:
    """A ValueError becomes one sentence that names the option; so does a file or folder that cannot be used."""
    try:
        yield
    except ValueError as error:
        raise Refused(re.sub(r"^(to|only|points|variant|device|input|plant)(?= )", r"--\1", str(error))) from error
    except OSError as error:
        raise Refused(f"{error.filename or 'your folder'} cannot be used: {error.strerror or error}") from error
