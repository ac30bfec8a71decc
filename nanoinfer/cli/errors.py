"""What went wrong, in one sentence: exit code 2 for what was asked, 1 for what happened, 130 for Ctrl-C.

The package refuses arguments with a `ValueError` of one sentence that names the Python argument; here the sentence is
kept and the name becomes the option's.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

REFUSED, FAILED, STOPPED, CLOSED_PIPE = 2, 1, 130, 141  # 141 is what a program gets that SIGPIPE ended


class Refused(Exception):
    """Something that was asked for cannot be had; the message is one sentence."""


class Failed(Exception):
    """Something went wrong that could not be known before; the message is one sentence."""


class Stopped(Exception):
    """Ctrl-C came, and what there was has been written; the message says how much that is."""


_OPTION = re.compile(r"^(model|max_tokens|temperature|top_k|top_p|seed|engine|device|dtype|max_batch|max_len)(?= )")


@contextmanager
def refusing(lines: bool = False) -> Iterator[None]:
    """A ValueError of the package becomes `Refused`. lines: prompts are lines, counted from 1."""
    try:
        yield
    except ValueError as error:
        message = _OPTION.sub(lambda match: "--" + match[0].replace("_", "-"), str(error))
        message = re.sub(r"^stop must hold", "--stop must hold", message)
        message = re.sub(r"^stop_token_ids must", "--stop-token-id must", message)
        if lines:
            message = re.sub(r"^prompt (\d+)", lambda match: f"line {int(match[1]) + 1}", message)
        raise Refused(message) from error


def failure(error: Exception) -> str:
    """One sentence about an error that no check foresaw; where it comes from, if NANOINFER_TRACEBACK asks for it."""
    if os.environ.get("NANOINFER_TRACEBACK"):
        traceback.print_exception(error)
    if isinstance(error, Failed):
        return str(error)
    lines = str(error).strip().splitlines() or [""]
    first = lines[0].removesuffix(".")
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "allocate memory" in first:
        return f"out of memory ({first or 'host'}): lower --max-batch or --max-len, or take a smaller model"
    what = ": ".join(filter(None, (type(error).__name__, first)))
    return f"{what} (NANOINFER_TRACEBACK=1 shows where)"
