"""What is read and written: prompts, text on standard output, remarks on standard error.

A model may produce any byte, an escape character too. On a terminal control characters are shown escaped, so that text
can neither move the cursor nor change what was printed before; a pipe gets the text as it is, in UTF-8.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
from typing import Any, BinaryIO

import typer

from nanoinfer.cli.errors import OutputFailed, PipeClosed, Refused

# Controls but newline and tab (C0, DEL, C1), and what reorders a line or breaks it: bidirectional marks, U+2028/9.
INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LIMIT_MIB = 16  # of prompts


def prepare_streams() -> None:
    """UTF-8 for text and remarks, whatever the locale says; what UTF-8 cannot hold is replaced, never raised.

    The shell refuses lines that are not UTF-8 one by one.

    A stream that was closed, as a daemon's are, becomes one that goes nowhere: else the next file or socket that is
    opened would take its descriptor, and get what is printed. Writing to such a standard output fails, as it should.
    """
    for number, (name, mode) in enumerate((("stdin", os.O_RDWR), ("stdout", os.O_RDONLY), ("stderr", os.O_RDWR))):
        if getattr(sys, name) is None and os.open(os.devnull, mode) == number:  # the lowest that is free
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    if isinstance(getattr(sys.stdout, "buffer", None), io.FileIO):  # PYTHONUNBUFFERED forgets what it cannot write
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def is_terminal(stream: Any) -> bool:
    """Whether a person sits at this stream; False for one that is closed or missing."""
    return stream is not None and not stream.closed and stream.isatty()


def visible(text: str) -> str:
    """The text with every control character but newline and tab written out: ESC is shown as `\\x1b`."""
    return INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def colours() -> bool:
    """Whether standard output may have colours."""
    return is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write(text: str, colour: str | None = None) -> None:
    """Write to standard output, at once, so that text streams through a pipe as well.

    PipeClosed where nobody reads any more; OutputFailed where it cannot be written.
    """
    text = visible(text) if is_terminal(sys.stdout) else text
    try:
        if text:  # of nothing, a full device takes nothing
            sys.stdout.write(typer.style(text, fg=colour) if colour and colours() else text)
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  Python flushes once more at its end, and would complain
        if error.errno in (errno.EPIPE, errno.EINVAL):  # Windows says EINVAL
            raise PipeClosed from None
        raise OutputFailed(f"standard output cannot be written: {error.strerror}") from error


def remark(text: str) -> None:
    """One line on standard error."""
    with contextlib.suppress(OSError):  # a remark that nobody can read is no reason to fail
        print(visible(" ".join(text.split("\n"))), file=sys.stderr, flush=True)


def progress_bar(total: int, wanted: bool) -> Any:
    """How many of `total` prompts are done, on standard error where that is a terminal and there are several."""
    shown = wanted and total > 1 and is_terminal(sys.stderr)
    return typer.progressbar(length=total, label="prompts", show_pos=True, file=sys.stderr if shown else io.StringIO())


def read_prompts(argument: str | None, file: BinaryIO | None, lines: bool) -> list[str]:
    """The prompts asked for, none of them empty: the argument, a file, or standard input."""
    if argument is not None and file is not None:
        raise Refused("there are two prompts, the argument and --file: give one of them")
    if argument not in (None, "-"):
        text, name = from_argument(argument), "the prompt"
    else:
        if file is None and is_terminal(sys.stdin):
            remark("nanoinfer: type the prompt and end it with Ctrl-D on a line of its own (Windows: Ctrl-Z, Enter)")
        name = file.name if file else "standard input"
        text = _decode((file or sys.stdin.buffer).read((LIMIT_MIB << 20) + 1), name)
    text = text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
    if not text:
        raise Refused(f"{name} is empty: a prompt must have at least one character")
    if not lines:
        return [text]
    prompts = [line.removesuffix("\r") for line in text.split("\n")]
    if "" in prompts:
        raise Refused(f"line {prompts.index('') + 1} of {name} is empty: every line must be a prompt")
    return prompts


def from_argument(text: str) -> str:
    """An argument as the UTF-8 that was typed: in an ASCII locale Python hands it over as surrogates."""
    return _decode(os.fsencode(text), "the argument")


def _decode(data: bytes, name: str) -> str:
    if len(data) > LIMIT_MIB << 20:
        raise Refused(f"{name} holds more than {LIMIT_MIB} MiB, which is the most that is read")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")  # some editors begin every file with this mark
    except UnicodeDecodeError as error:
        raise Refused(f"{name} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from None
