"""Confines the calling process, from within, before it reads a line of a student's code.

It must have one thread: Landlock and the change of user bind only the thread that asks, and an older thread would be a
way out. Returns what was done and what was not; the parent decides whether that is enough.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nanocourse.grade.isolation import system

TASKS = 32  # threads of one worker
PACKAGES = ("nanoinfer", "nanocourse", "nanobench", "nanobook")  # of this distribution: they hold the answers
LAYERS = ("bubblewrap", "landlock", "limits", "user")  # those that a test can switch off


@dataclass(frozen=True)
class Policy:
    """What one worker may reach, and is given. user: None if it stays who it is. layers: those to apply.

    unwrapped: why it is not in bubblewrap; empty if it is. read, listed, execute: paths, with everything beneath them;
    of `listed` only names can be seen. starting: it may start programs. memory: bytes beyond what is mapped when it is
    confined. scratch_size: of the folder, which the parent watches; file_size: of one file, smaller, since the parent
    cannot see a file that was removed while open.

    files: paths and names of chapter files that it reads before it is confined. helpers: modules of the package that it
    keeps, as sources. watched: whether calls are traced, which is done if the package itself cannot be hidden. scenes:
    whether the student's function is asked by one.
    """

    scratch: str
    read: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    execute: tuple[str, ...] = ()
    user: int | None = None
    unwrapped: str = ""
    memory: int = 512 << 20
    scratch_size: int = 16 << 20
    file_size: int = 4 << 20
    cpu_s: int = 540
    tasks: int = TASKS
    starting: bool = False
    layers: tuple[str, ...] = LAYERS
    files: tuple[tuple[str, str], ...] = ()
    helpers: Mapping[str, str] = field(default_factory=dict)
    watched: bool = False
    scenes: bool = False

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Policy:
        """From JSON, where tuples are lists."""
        given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
        return cls(**given)


@dataclass
class Confined:
    """The layers that hold now, and why the others do not."""

    present: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def attempt(self, name: str, action: Callable[[], object]) -> None:
        """Apply one layer."""
        try:
            action()
        except (OSError, ValueError, AttributeError, ImportError) as error:
            self.missing[name] = str(error) or type(error).__name__
        else:
            self.present.append(name)


def confine(wanted: Policy, keep: set[int]) -> Confined:
    """Apply the policy. keep: descriptors that stay open. RuntimeError if a second thread runs."""
    done = Confined()
    if not system.LINUX:
        if os.name == "posix":
            from nanocourse.checks.exit_with_parent import exit_with_parent

            exit_with_parent()
        done.missing = dict.fromkeys(("bubblewrap", "landlock", "limits"), f"{sys.platform} has none that is used here")
        return done
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError("a second thread runs, which no layer would bind")
    from nanocourse.grade.isolation import landlock

    close_others(keep)
    os.umask(0o077)
    os.chdir(wanted.scratch)
    layers = {
        "bubblewrap": lambda: _wrapped(wanted.unwrapped),
        "limits": lambda: system.limit(wanted.memory, wanted.file_size, wanted.cpu_s, wanted.tasks),
        "no new privileges": lambda: system.prctl(system.NO_NEW_PRIVS, 1),
        "landlock": lambda: landlock.restrict(wanted.read, wanted.listed, wanted.execute, (wanted.scratch,)),
        "user": lambda: system.become(wanted.user or 0),
        "ends with its parent": end_with_parent,
        "unreadable worker": lambda: system.prctl(system.DUMPABLE, 0),
    }
    for name, action in layers.items():
        if name in LAYERS and name not in wanted.layers:
            done.missing[name] = "switched off"
        elif name != "user" or wanted.user is not None:
            done.attempt(name, action)
    return done


def _wrapped(why_not: str) -> None:
    """It began before this process did; here it is noted, and `probe` looks whether it holds."""
    if why_not:
        raise OSError(why_not)


def end_with_parent() -> None:
    """Be killed when the parent ends; set after the change of user, which would clear it."""
    parent = os.getppid()
    system.prctl(system.PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def close_others(keep: set[int]) -> None:
    """Close every descriptor except these."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with contextlib.suppress(OSError):  # the listing's own is closed already
                os.close(int(name))


def to_start_at_all() -> dict[str, str]:
    """The variables that some systems need to start Python at all; they name folders."""
    names = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {name: os.environ[name] for name in names if name in os.environ}


def environment(scratch: str) -> None:
    """Point the few variables that libraries look for into the scratch folder."""
    os.environ.update(dict.fromkeys(("HOME", "TMPDIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"), scratch))
