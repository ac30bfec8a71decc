"""What a worker may reach, decided by the parent: which files, and as which user.

A file is readable only if it is named here. Our own packages, the chapters, the assignment, the results and the other
submissions are *hidden*: no rule covers them, even where they are inside a folder that is readable.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from nanocourse.exercises.chapters import root
from nanocourse.grade.isolation import system
from nanocourse.grade.isolation.confine import PACKAGES

LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
DEVICES = (
    "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/etc/ld.so.cache", "/proc/cpuinfo", "/proc/meminfo",
)  # fmt: skip
FIRST_USER, USERS = 62000, 3000  # between those of people and of the system; they need no entry in /etc/passwd


def readable(hidden: Iterable[Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of interpreter and libraries: what may be read, and folders whose names may be seen, without what is hidden."""
    away, read, listed = set(hidden), list[str](), list[str]()
    for place in libraries():
        _allow(place, away, read, listed)
    return tuple(read), tuple(listed)


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


def a_user() -> int | None:
    """The user that workers become, mostly another one for each grader; None if we are not root and have no choice."""
    return FIRST_USER + os.getpid() * 7 % USERS if system.LINUX and os.geteuid() == 0 else None


def why_no_user() -> str:
    """Why another user could not run this Python, mostly an interpreter below /root; empty if it could."""
    for place in (Path(sys.executable), *libraries()):
        for path in (place.resolve(), *place.resolve().parents):
            mode = path.stat().st_mode
            if not mode & 0o001 and (path.is_dir() or path == Path(sys.executable).resolve()):
                return f"{path} cannot be entered by another user (mode {mode & 0o777:o})"
    return ""


def _allow(place: Path, hidden: set[Path], read: list[str], listed: list[str]) -> None:
    """Allow a folder as a whole, or name by name if something hidden is beneath it."""
    if place in hidden:
        return
    if not any(place in away.parents for away in hidden):
        read.append(str(place))
        return
    listed.append(str(place))
    for inner in sorted(place.iterdir()):
        _allow(inner, hidden, read, listed)
