"""What is written where: text on standard output, remarks on standard error, and nothing a terminal would obey.

A model may produce any byte, an escape character too. On a terminal control characters are shown escaped, so that text
can neither move the cursor nor change what was printed before; a pipe gets the text as it is, in UTF-8.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

import typer

from nanoinfer.cli.errors import OutputFailed, PipeClosed

if TYPE_CHECKING:
    from rich.progress import Progress

# Controls but newline and tab (C0, DEL, C1), and what reorders a line or breaks it: bidirectional marks, U+2028/9.
_CONTROLS = [code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
_INVISIBLE = [0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS} | {code: f"\\u{code:04x}" for code in _INVISIBLE}


def visible(text: str) -> str:
    """The text with every control character but newline and tab written out: ESC is shown as `\\x1b`."""
    return text.translate(_ESCAPES)


def prepare_streams() -> None:
    """UTF-8 for text and remarks, whatever the locale says; what UTF-8 cannot hold is replaced, never raised.

    A stream that was closed, as a daemon's are, becomes one that goes nowhere: else the next file or socket that is
    opened would take its descriptor, and get what is printed. Writing to such a standard output fails, as it should.
    """
    for number, (name, mode) in enumerate((("stdin", os.O_RDWR), ("stdout", os.O_RDONLY), ("stderr", os.O_RDWR))):
        if getattr(sys, name) is None and os.open(os.devnull, mode) == number:  # the lowest that is free
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    if isinstance(getattr(sys.stdout, "buffer", None), io.FileIO):  # PYTHONUNBUFFERED forgets what it cannot write
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def is_terminal(stream: Any) -> bool:
    """Whether a person sits at this stream; False for one that is closed or missing."""
    return stream is not None and not stream.closed and stream.isatty()


class Output:
    """Standard output. Everything written is flushed at once, so that text streams through a pipe as well."""

    def __init__(self) -> None:
        self._stream: TextIO = sys.stdout or io.StringIO()
        self.terminal = is_terminal(sys.stdout)
        self.colours = self.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def write(self, text: str, colour: str | None = None) -> None:
        """Write and flush. PipeClosed where nobody reads any more; OutputFailed where it cannot be written."""
        text = visible(text) if self.terminal else text
        try:
            if text:  # of nothing, a full device takes nothing
                self._stream.write(typer.style(text, fg=colour) if colour and self.colours else text)
            self._stream.flush()
        except OSError as error:
            abandon_output()
            if error.errno in (errno.EPIPE, errno.EINVAL):  # Windows says EINVAL
                raise PipeClosed from None
            raise OutputFailed(f"standard output cannot be written: {error.strerror}") from error


def abandon_output() -> None:
    """What is left for standard output goes nowhere: Python flushes once more at its end, and would complain."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def remark(text: str) -> None:
    """One line on standard error."""
    with contextlib.suppress(OSError):  # a remark that nobody can read is no reason to fail
        print(visible(" ".join(text.split("\n"))), file=sys.stderr, flush=True)


def progress_bar(total: int, wanted: bool) -> Progress:
    """How many of `total` prompts are done, on standard error where that is a terminal and there are several.

    Its one task is task 0. It must be stopped while text is written: both may stand on the same terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    hidden = not wanted or total < 2 or not is_terminal(sys.stderr)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("prompts"), TimeElapsedColumn())
    console = Console(stderr=True, quiet=hidden)
    bar = Progress(
        *columns, console=console, disable=hidden, transient=True, redirect_stdout=False, redirect_stderr=False
    )
    bar.add_task("", total=total)
    return bar
