"""What a worker may reach, decided by the parent: which files, how much memory, which user.

A file is readable only if it is named here. Our own packages, the chapters, the assignment, the results and the other
submissions are *hidden*: no rule covers them, even where they are inside a folder that is readable.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nanocourse.exercises.chapters import root
from nanocourse.grade.assignment import Limits
from nanocourse.grade.isolation import system
from nanocourse.grade.isolation.confine import PACKAGES, TASKS, Policy

LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/urandom",
    "/dev/random",
    "/etc/ld.so.cache",
    "/proc/cpuinfo",
    "/proc/meminfo",
)
FIRST_USER, USERS = 62000, 3000  # between those of people and of the system; they need no entry in /etc/passwd


@dataclass(frozen=True)
class Machine:
    """What is the same for all workers of one grader. hidden: what no student may read."""

    hidden: tuple[Path, ...]
    limits: Limits
    read: tuple[str, ...] = field(default=())
    listed: tuple[str, ...] = field(default=())

    @classmethod
    def survey(cls, hidden: Iterable[Path], limits: Limits) -> Machine:
        """Look at this machine once: interpreter and libraries without what is hidden among them."""
        away = tuple(dict.fromkeys(path.resolve() for path in (*hidden, *own_sources())))
        read: list[str] = []
        listed: list[str] = []
        for place in libraries():
            _allow(place, away, read, listed)
        return cls(away, limits, tuple(read), tuple(listed))

    def policy(self, scratch: Path, own: Iterable[Path], user: int | None, **more: Any) -> Policy:
        """A worker's policy. own: what it may read in addition, its student's files."""
        tasks = TASKS + (0 if user is not None or not system.LINUX else system.tasks_of(os.getuid()))
        return Policy(
            str(scratch), (*self.read, *DEVICES, *map(str, own)), self.listed, user=user, tasks=tasks,
            memory=self.limits.memory_mb << 20, scratch_size=self.limits.disk_mb << 20,
            file_size=self.limits.disk_mb << 18, cpu_s=int(self.limits.submission_s), **more,
        )  # fmt: skip


def own_sources() -> list[Path]:
    """Where the answers are: this distribution's packages, and the book, which in a clone is the whole clone."""
    specs = filter(None, map(find_spec, PACKAGES))
    folders = [folder for spec in specs for folder in spec.submodule_search_locations or ()]
    return [path.resolve() for path in (*map(Path, folders), root())]


def libraries() -> list[Path]:
    """Folders that imports may read: the standard library, pip's packages, the system's shared libraries."""
    places = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    for entry in filter(None, sys.path):
        path = Path(entry)
        if path.name in ("site-packages", "dist-packages", "lib-dynload") or (path / "torch").is_dir():
            places.append(path)
    found = [path.resolve() for path in (*places, *map(Path, LIBRARIES)) if path.exists()]
    return [path for path in dict.fromkeys(found) if not any(other in path.parents for other in found)]


def a_user(turn: int) -> int | None:
    """The user that a worker becomes, another one at each turn; None if we are not root and have no choice."""
    if not system.LINUX or os.geteuid() != 0:
        return None
    return FIRST_USER + (os.getpid() * 7 + turn) % USERS


def why_no_user(user: int) -> str:
    """Why another user could not run this Python, mostly an interpreter below /root; empty if it could."""
    for place in (Path(sys.executable), *libraries()):
        for path in (place.resolve(), *place.resolve().parents):
            mode = path.stat().st_mode
            if not mode & 0o001 and (path.is_dir() or path == Path(sys.executable).resolve()):
                return f"{path} cannot be entered by another user (mode {mode & 0o777:o})"
    return ""


def _allow(place: Path, hidden: tuple[Path, ...], read: list[str], listed: list[str]) -> None:
    """Allow a folder as a whole, or name by name if something hidden is beneath it."""
    if place in hidden:
        return
    if not any(place in away.parents for away in hidden):
        read.append(str(place))
        return
    listed.append(str(place))
    for inner in sorted(place.iterdir()):
        _allow(inner, hidden, read, listed)
