"""A process that one of ours starts: a fresh interpreter, its pipes, what is raised in it, and its end. Chapter 5."""

from __future__ import annotations

import builtins
import ctypes
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from functools import cache
from typing import NoReturn
from weakref import WeakSet

from nanoinfer.worker import Worker

PR_SET_PDEATHSIG = 1  # of Linux's <sys/prctl.h>
CHILD = "nanoinfer.serve.engine_child"
_spawned: WeakSet[subprocess.Popen[bytes]] = WeakSet()


def spawn(module: str = CHILD, first: str = "") -> subprocess.Popen[bytes]:
    """A fresh interpreter with this one's path. `multiprocessing` would run the caller's script again.

    module: whose `main` it runs. first: what is to be run ahead of all else, for tests.
    """
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from nanoinfer.serve.processes import end_with; end_with({os.getpid()})\n"
        f"{first}\nfrom {module} import main; main()"
    )
    process: subprocess.Popen[bytes] = _starter(os.getpid()).submit(_start, code).result()
    return process


@cache
def _starter(process: int) -> Worker:
    """The thread of this process that starts all others.

    Linux sends `PR_SET_PDEATHSIG` when the *thread* that started a process ends, so this one stays to the last. A
    fork has no threads of its parent's: it gets its own.
    """
    worker = Worker("nanoinfer-start")
    worker.stop.atexit = False
    return worker


def _start(code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    _spawned.add(process)
    return process


def end_with(parent: int) -> None:
    """Let Linux kill this process when its parent ends, even if it hangs or is stopped by then.

    Other systems have no such call: there the end of the pipe is the end, once this process runs on and reads it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has ended before the call
            os._exit(1)


def kill_all() -> None:
    """End every process that was spawned here and still runs, one that hangs or is stopped as well."""
    for process in list(_spawned):
        if process.poll() is None:
            process.kill()
            process.wait()


def pipes() -> tuple[int, int]:
    """Descriptors from and to the process that made this one. What is printed here goes to where errors go."""
    for name in ("SIGINT", "SIGTERM"):  # they come to all processes; the one that made this says when it is over
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    source, target = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # this process ends without a last flush
    return source, target


def die(error: BaseException) -> NoReturn:
    """Who made this process hears of the end, and of its cause here."""
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(1)


def how(process: subprocess.Popen[bytes], patience: float) -> str:
    """How it has ended, within so many seconds."""
    try:
        code = process.wait(patience)
    except subprocess.TimeoutExpired:
        return "it does not answer any more"
    return f"exit code {code}" if code >= 0 or os.name == "nt" else f"killed by {signal.Signals(-code).name}"


@dataclass(frozen=True)
class Raised:
    """What was raised in a process, as it can go to another."""

    kind: str  # its nearest class that every process knows
    text: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return cls(kind, str(error), "".join(traceback.format_exception(error)))

    def again(self) -> Exception:
        """The same, or the nearest that Python knows; caused by its traceback there unless it is a mere refusal."""
        error: Exception = getattr(builtins, self.kind)(self.text)
        if not isinstance(error, (ValueError, TypeError)):
            error.__cause__ = RuntimeError(f"in its process\n{self.trace}")
        return error
