"""What docstrings say of arguments: the command line's help, and tables of pages, are made of it."""

from __future__ import annotations

import inspect
import re
from typing import Any, NamedTuple


class Told(NamedTuple):
    """What a line `name METAVAR: help. None: unset.` says; metavar and unset may be missing."""

    metavar: str | None = None
    help: str = ""
    unset: str = ""


def described(owner: Any) -> tuple[str, dict[str, Told], str]:
    """Split the docstring of a function or config: what comes first, what it says of each argument, and examples."""
    text, _, examples = (inspect.getdoc(owner) or "").partition("\n\nExamples:\n")
    names = "|".join(inspect.signature(owner).parameters)  # another word may begin a line and end with a colon
    lead, *rest = re.split(rf"^({names})(?: (\S+))?: ", text, flags=re.MULTILINE)
    told = {}
    for name, metavar, more in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        what, _, unset = " ".join(more.partition("\n\n")[0].split()).partition(" None: ")
        told[name] = Told(metavar, what[:1].upper() + what[1:], unset.removesuffix("."))
    return lead.strip(), told, examples
