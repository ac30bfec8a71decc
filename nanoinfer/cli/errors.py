"""What ends a command early: one sentence on standard error, and an exit code."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping


class CommandError(Exception):
    """Something went wrong that could not be known before; the message is one sentence."""

    code = 1


class Refused(CommandError):
    """Something that was asked for is not available; the message is one sentence."""

    code = 2


class Stopped(CommandError):
    """Ctrl-C came, and the output so far has been written; the message says how much that is."""

    code = 130


class OutputFailed(CommandError):
    """Standard output cannot be written."""


class PipeClosed(OutputFailed):
    """The reader of our standard output has gone, which is no fault: nothing is said."""

    code = 141  # what a program gets that SIGPIPE ended


def explained(error: BaseException, names: Mapping[str, str]) -> CommandError:
    """Return any error as one sentence and an exit code.

    The package refuses an argument with a ValueError of one sentence that begins with the argument's name. names: what
    the user calls each argument. NANOINFER_TRACEBACK=1 shows where an unforeseen error comes from.
    """
    if isinstance(error, CommandError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Stopped("stopped by Ctrl-C")
    if hasattr(error, "format_message"):  # of typer's own errors, in any version of it; empty after a group's help
        said: str = error.format_message()
        words = "extra argument" in said and error.ctx.info_name == "generate"  # type: ignore[attr-defined]
        hint = ": put a prompt of several words in quotes" * words
        return Refused(said[:1].lower() + said[1:].removesuffix(".") + hint)
    if isinstance(error, ValueError) and _ours(error):
        name, _, rest = str(error).partition(" ")
        return Refused(f"{names.get(name, name)} {rest}")
    if os.environ.get("NANOINFER_TRACEBACK"):
        traceback.print_exception(error)
    what = sentence(error)
    if isinstance(error, MemoryError) or "OutOfMemoryError" in what or "allocate memory" in what:
        return CommandError(f"out of memory ({what}): lower --max-batch or --max-len, or take a smaller model")
    return CommandError(f"{what} (NANOINFER_TRACEBACK=1 shows where)")


def sentence(error: BaseException) -> str:
    """Return the kind of an error, and the first line of what it says."""
    first = next(iter(str(error).strip().splitlines()), "").removesuffix(".")
    return f"{type(error).__name__}: {first}".removesuffix(": ")


def _ours(error: ValueError) -> bool:
    """Return whether this package raised the error: one that comes from torch or Python is a bug, not a refusal.

    An error of an engine in another process has lost its traceback on the way, up to the future that handed it over.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).startswith(("nanoinfer.", "concurrent.futures."))
