"""What ends a command early: one sentence on standard error, and an exit code.

The package refuses arguments with a `ValueError` of one sentence that begins with the Python argument. Here the
sentence is kept, and the name becomes the option's.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from nanoinfer.config import EngineConfig
from nanoinfer.requests import SamplingParams
from nanoinfer.serve.config import ServeConfig

NAMES = {each.name for kind in (EngineConfig, SamplingParams, ServeConfig) for each in fields(kind)} - {"n"}
NAMES |= {"model", "shard", "workers", "every"}


class CommandError(Exception):
    """Something went wrong that could not be known before; the message is one sentence."""

    code = 1


class Refused(CommandError):
    """Something that was asked for is not available; the message is one sentence."""

    code = 2


class Stopped(CommandError):
    """Ctrl-C came, and what there was has been written; the message says how much that is."""

    code = 130


class OutputFailed(CommandError):
    """Standard output cannot be written."""


class PipeClosed(OutputFailed):
    """Whoever read our standard output has gone, which is no fault: nothing is said."""

    code = 141  # what a program gets that SIGPIPE ended


@contextmanager
def refusing(lines: bool = False) -> Iterator[None]:
    """A ValueError of the package becomes `Refused`. lines: prompts are lines, counted from 1."""
    try:
        yield
    except ValueError as error:
        message, (name, _, rest) = str(error), str(error).partition(" ")
        if name in NAMES:
            message = f"--{name.replace('_ids', '_id').replace('_', '-')} {rest}"
        elif lines:
            message = re.sub(r"^prompt (\d+)", lambda found: f"line {int(found[1]) + 1}", message)
        raise Refused(message) from error


def explained(error: BaseException) -> CommandError:
    """Any error as one sentence and an exit code; NANOINFER_TRACEBACK=1 shows where an unforeseen one comes from."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Stopped("stopped by Ctrl-C")
    if hasattr(error, "format_message"):  # of typer's own errors, in any version of it; empty after a group's help
        said: str = error.format_message()
        words = "extra argument" in said and error.ctx.info_name == "generate"  # type: ignore[attr-defined]
        return Refused(
            said[:1].lower() + said[1:].removesuffix(".") + ": put a prompt of several words in quotes" * words
        )
    if os.environ.get("NANOINFER_TRACEBACK"):
        traceback.print_exception(error)
    first = next(iter(str(error).strip().splitlines()), "").removesuffix(".")
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "allocate memory" in first:
        remedy = "lower --max-batch or --max-len, or take a smaller model"
        return CommandError(f"out of memory ({first or 'host'}): {remedy}")
    what = f"{type(error).__name__}: {first}".removesuffix(": ")
    return CommandError(f"{what} (NANOINFER_TRACEBACK=1 shows where)")
