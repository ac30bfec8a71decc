"""Bubblewrap around a worker: no network, no other process, and of the files only libraries and what it is given.

A graded worker gives up more by itself once it has started, the package and its answers among it: see `confine`.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from nanocourse.checks.worker_main import import_path

LIBRARIES = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/etc/ld.so.cache", "/opt/conda")
ALONE = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
NOBODY = ("--unshare-user", "--uid", "62000", "--gid", "62000", "--cap-drop", "ALL")
NOTHING_ELSE = ("--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")


@functools.cache
def why_not(privileged: bool = False) -> str:
    """Why bubblewrap cannot be used here; empty if it can. privileged: as in `prefix`."""
    if shutil.which("bwrap") is None:
        return "bubblewrap (bwrap) is not installed"
    command = [*prefix(privileged=privileged), sys.executable, "-I", "-c", ""]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot be started: {type(error).__name__}"
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return "" if not done.returncode else f"bubblewrap is not permitted here: {said[-1] if said else 'it says nothing'}"


def prefix(readable: Iterable[Path] = (), writable: Iterable[Path] = (), privileged: bool = False) -> list[str]:
    """What a command begins with to reach nothing but libraries, our packages and these places.

    privileged: we are root, and the command gives up its privileges itself, by becoming another user.
    """
    places = [*map(Path, (*LIBRARIES, *import_path())), Path(sys.prefix), Path(sys.base_prefix), *readable]
    found = dict.fromkeys(form for place in places for form in (place.absolute(), place.resolve()) if place.exists())
    whole = [place for place in found if not any(outer in found for outer in place.parents)]
    binds = [*(("--ro-bind", place) for place in whole), *(("--bind", place) for place in writable)]
    shown = [word for how, place in binds for word in (how, str(place), str(place))]
    # Folders above a place, which bubblewrap would make for itself alone: who has become another user must pass them.
    above = dict.fromkeys(one for _, place in binds for one in reversed(place.parents) if one != Path("/"))
    passed = [word for one in above for word in ("--dir", str(one))]
    return [shutil.which("bwrap") or "bwrap", *ALONE, *(() if privileged else NOBODY), *NOTHING_ELSE, *passed, *shown]


def told() -> str:
    """What isolates the workers of `course oral` and `course verify`, in words."""
    missing = why_not()
    if not missing:
        return "run in bubblewrap: without network, and without other files and processes"
    return f"run without isolation, as `course check` does: {missing}"
