"""What a command of the benchmark refuses: one sentence, and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import typer

T = TypeVar("T")


def or_exit(run: Callable[[], T]) -> T:
    """What `run` gives; exit code 2 and one sentence where it refuses."""
    try:
        return run()
    except (ValueError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
