"""What Linux does for a process that asks: prctl, limits, another user; and ending whatever a worker left behind.

Through ctypes: Python has no prctl, the bindings for it need a C compiler or have seen no release since 2021, and a
grader must be installable without a network.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LINUX = sys.platform == "linux"
PDEATHSIG, GET_DUMPABLE, DUMPABLE, SUBREAPER, GET_SUBREAPER, NO_NEW_PRIVS = 1, 3, 4, 36, 37, 38  # <linux/prctl.h>
OPEN_FILES = 64


def prctl(option: int, value: int = 0) -> int:
    """prctl(2). OSError if the kernel refuses, or is not Linux."""
    if not LINUX:
        raise OSError(f"{sys.platform} has no prctl")
    call = ctypes.CDLL(None, use_errno=True).prctl
    answer: int = call(ctypes.c_int(option), *(ctypes.c_ulong(number) for number in (value, 0, 0, 0)))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


UNREADABLE = "unreadable grader", DUMPABLE, GET_DUMPABLE, 0
INHERITING = "subreaper", SUBREAPER, GET_SUBREAPER, 1


@contextlib.contextmanager
def guarded(*settings: tuple[str, int, int, int]) -> Iterator[dict[str, str]]:
    """Other processes of this user can neither trace nor read this one, and it inherits what its workers orphan.

    settings: only these of the two. Yields what is not available: layer -> reason.
    """
    missing: dict[str, str] = {}
    before: list[tuple[int, int]] = []
    for name, setter, getter, value in settings or (UNREADABLE, INHERITING):
        try:
            before.append((setter, _get(getter)))
            prctl(setter, value)
        except OSError as error:
            missing[name] = str(error)
    try:
        yield missing
    finally:
        for setter, value in before:
            with contextlib.suppress(OSError):
                prctl(setter, value)


def _get(getter: int) -> int:
    if getter == GET_DUMPABLE:
        return prctl(getter) & 1  # 2 is the system's own, and cannot be set again
    found = ctypes.c_int(0)
    prctl(getter, ctypes.addressof(found))
    return found.value


def become(user: int) -> None:
    """Change to another user and group for good. OSError if that is not allowed."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def limit(memory: int, file_size: int, cpu_s: int, tasks: int) -> None:
    """Hard resource limits of this process. memory: bytes beyond what is mapped now. tasks: threads."""
    import resource  # Windows has none

    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    for name, value in (
        ("AS", mapped + memory), ("FSIZE", file_size), ("CPU", cpu_s), ("NPROC", tasks), ("NOFILE", OPEN_FILES),
        ("CORE", 0), ("MEMLOCK", 0), ("MSGQUEUE", 0),
    ):  # fmt: skip
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


def bound_memory(more: int) -> None:
    """Let this process take so many bytes more. Processes that it starts may lift the limit again."""
    import resource

    held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + more, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def tasks_of(user: int) -> int:
    """The number of threads that a user has now: RLIMIT_NPROC counts them all, wherever they were started."""
    count = 0
    for process in _processes():
        with contextlib.suppress(OSError):
            if process.stat().st_uid == user:
                count += len(os.listdir(process / "task"))
    return count


def children() -> set[int]:
    """Process ids of our children, including those inherited as their subreaper."""
    found = set()
    for process in _processes():
        with contextlib.suppress(OSError, IndexError):
            after_name = process.joinpath("stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
            if int(after_name.split()[1]) == os.getpid():
                found.add(int(process.name))
    return found


def started_by(pid: int) -> int:
    """How many processes run beneath this one: children of its threads, and theirs."""
    count = 0
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError, ValueError):
            children = listed.read_text(encoding="ascii").split()
            count += sum(1 + started_by(int(child)) for child in children)
    return count


def end_strays(known: set[int], patience_s: float = 5.0) -> int:
    """Kill every child that is not known, and what it leaves to us in turn. Returns how many there were."""
    ended: set[int] = set()
    deadline = time.monotonic() + patience_s
    while (strays := children() - known) and time.monotonic() < deadline:
        for stray in strays:
            with contextlib.suppress(OSError):
                os.kill(stray, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(stray, os.WNOHANG)
        ended |= strays
    return len(ended)


@contextlib.contextmanager
def ending_strays() -> Iterator[None]:
    """What begins in this block ends with it, in a session of its own too. Linux alone can do that."""
    known = children()
    with guarded(INHERITING):
        try:
            yield
        finally:
            end_strays(known)


def _processes() -> Iterator[Path]:
    return (path for path in Path("/proc").iterdir() if path.name.isdecimal()) if LINUX else iter(())
