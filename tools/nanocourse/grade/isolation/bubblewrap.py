"""Bubblewrap, where it is installed and may be used: around the workers of `course oral` and `course verify`.

These need the package beside a student's file, for they tell which lines ran and what was called; the layers of a
graded worker take the package away. Grading itself goes without it: `templates/isolation.md` says why.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

from nanocourse.checks.worker import Worker

LIBRARIES = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/etc/ld.so.cache", "/opt/conda")
NOTHING_ELSE = ("--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")


@functools.cache
def why_not() -> str:
    """Why bubblewrap cannot be used here; empty if it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap (bwrap) is not installed"
    try:
        done = subprocess.run(
            [*prefix([]), sys.executable, "-I", "-c", ""], capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot be started: {type(error).__name__}"
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return "" if not done.returncode else f"bubblewrap is not permitted here: {said[-1] if said else 'it says nothing'}"


def prefix(readable: list[Path]) -> list[str]:
    """Runs a command that has no network, sees no other process, and reads libraries and these places alone."""
    places = [*map(Path, LIBRARIES), Path(sys.prefix), Path(sys.base_prefix), *readable]
    found = dict.fromkeys(str(form) for place in places for form in (place, place.resolve()) if place.exists())
    return ["bwrap", *NOTHING_ELSE, *(word for place in found for word in ("--ro-bind", place, place))]


class Wrapped(Worker):
    """A worker in bubblewrap, if that can be used. own: the folder with the student's files."""

    own: Path

    def _wrapped(self, command: list[str], path: list[str]) -> list[str]:
        return command if why_not() else [*prefix([*map(Path, path), self.own]), *command]


def told() -> str:
    """What isolates such a worker, in words."""
    missing = why_not()
    if not missing:
        return "run in bubblewrap: without network, and without other files and processes"
    return f"run without isolation, as `course check` does: {missing}"
