"""What ends a command early: one sentence on standard error, and an exit code.

The package refuses arguments with a `ValueError` of one sentence that names the Python argument. Here the sentence is
kept, and the name becomes the option's.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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


_OPTIONS = re.compile(
    r"^(model|max_tokens|temperature|top_k|top_p|seed|stop|stop_token_id|engine|device|dtype|max_batch|max_graph_batch"
    r"|max_len|threads|speculate|draft_tokens|tensor_parallel"
    r"|replicas|port|queue|connections|max_body|max_prompt_tokens|max_rows|max_stops|max_stop_length"
    r"|(?:request|body|stall|hang|drain)_timeout|api_key)s? "
)


@contextmanager
def refusing(lines: bool = False) -> Iterator[None]:
    """A ValueError of the package becomes `Refused`. lines: prompts are lines, counted from 1."""
    try:
        yield
    except ValueError as error:
        message = _OPTIONS.sub(lambda found: f"--{found[1].replace('_', '-')} ", str(error))
        if lines:
            message = re.sub(r"^prompt (\d+)", lambda found: f"line {int(found[1]) + 1}", message)
        raise Refused(message) from error


def explained(error: BaseException) -> CommandError:
    """Any error as one sentence and an exit code; NANOINFER_TRACEBACK=1 shows where an unforeseen one comes from."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Stopped("stopped by Ctrl-C")
    if hasattr(error, "format_message"):  # of typer's own errors, in any version of it
        return Refused(_usage(error))
    if os.environ.get("NANOINFER_TRACEBACK"):
        traceback.print_exception(error)
    first = next(iter(str(error).strip().splitlines()), "").removesuffix(".")
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "allocate memory" in first:
        remedy = "lower --max-batch or --max-len, or take a smaller model"
        return CommandError(f"out of memory ({first or 'host'}): {remedy}")
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return CommandError(f"{what} (NANOINFER_TRACEBACK=1 shows where)")


def _usage(error: Any) -> str:
    """Typer's sentence, with a word on what beginners most often mean; empty where it has printed a group's help."""
    message: str = error.format_message()
    prompt = "extra argument" in message and error.ctx.info_name == "generate"
    return message[:1].lower() + message[1:].removesuffix(".") + ": put a prompt of several words in quotes" * prompt
