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
from collections.abc import Iterator
from typing import Any, TextIO

from nanoinfer.cli.errors import Failed

# Controls but newline and tab (C0, DEL, C1), and what reorders a line or breaks it: bidirectional marks, U+2028/9.
_CONTROLS = [code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
_INVISIBLE = [0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS} | {code: f"\\u{code:04x}" for code in _INVISIBLE}


class PipeClosed(Exception):
    """Whoever read our standard output has gone."""


def visible(text: str) -> str:
    """The text with every control character but newline and tab written out: ESC is shown as `\\x1b`."""
    return text.translate(_ESCAPES)


def prepare_streams() -> None:
    """UTF-8 for text and remarks, whatever the locale says; what UTF-8 cannot hold is replaced, never raised."""
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def is_terminal(stream: Any) -> bool:
    """Whether a person sits at this stream; False for one that is closed or missing."""
    return stream is not None and not stream.closed and stream.isatty()


class Output:
    """Standard output. Everything written is flushed at once, so that text streams through a pipe as well."""

    def __init__(self) -> None:
        self._stream: TextIO = sys.stdout or io.StringIO()  # there is none where it was closed: `>&-`
        self.terminal = is_terminal(sys.stdout)

    def write(self, text: str) -> None:
        """Write and flush. PipeClosed where nobody reads any more; Failed where it cannot be written."""
        try:
            self._stream.write(visible(text) if self.terminal else text)
            self._stream.flush()
        except OSError as error:
            _drop_output()
            if error.errno in (errno.EPIPE, errno.EINVAL):  # Windows says EINVAL
                raise PipeClosed from None
            raise Failed(f"standard output cannot be written: {error.strerror}") from error


def _drop_output() -> None:
    """Point standard output at nothing: Python flushes it once more at shutdown, and would complain there."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def remark(text: str) -> None:
    """One line on standard error."""
    with contextlib.suppress(OSError):  # a remark that nobody can read is no reason to fail
        print(visible(" ".join(text.split("\n"))), file=sys.stderr, flush=True)


class Bar:
    """How many prompts are done, on standard error where that is a terminal and more than one is asked for."""

    def __init__(self, total: int, wanted: bool) -> None:
        self._progress: Any = None
        if not wanted or total < 2 or not is_terminal(sys.stderr):
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("prompts"), TimeElapsedColumn())
        self._progress = Progress(
            *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Bar:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._progress:
            self._progress.stop()

    def advance(self) -> None:
        """One more prompt is done."""
        if self._progress:
            self._progress.advance(self._task)

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the bar away while text is written: both may stand on the same terminal."""
        if self._progress:
            self._progress.stop()
        yield
        if self._progress:
            self._progress.start()
