"""How much memory the host has left. Chapter 1. Imports nothing, so that `doctor` can ask where torch is broken."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def free_host_memory() -> int | None:
    """Bytes that programs can still get: Linux's own estimate, less where a container has a limit; None if unknown."""
    free = None
    try:
        rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", ()):
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # ValueError: "max", there is no limit
        group = Path("/sys/fs/cgroup")
        room = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
        free = room if free is None else min(free, room)
    return None if free is None else max(free, 0)
