"""A process that one of ours starts: a fresh interpreter, the connection to it, what is raised in it, and its end.

Chapter 8. Connections pickle, and that is allowed here alone: both ends are ours, made as a pair and handed down to the
child, so nobody else can write to them. What a file or a client brings is never unpickled.
"""

from __future__ import annotations

import builtins
import ctypes
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from nanoinfer.worker import Worker

PR_SET_PDEATHSIG = 1  # of Linux's <sys/prctl.h>
END_TYPE: Any = getattr(multiprocessing.connection, "PipeConnection", Connection)  # the former on Windows


def spawn(module: str, first: str = "") -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a fresh interpreter with this one's path; return it, and this end of the connection to it.

    `multiprocessing` would run the caller's script again. module: its `main` is called with the other end. first: what
    is to be run ahead of all else, for tests.
    """
    ours, theirs = multiprocessing.Pipe()
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from nanoinfer.parallel.processes import begin; connection = begin({os.getpid()}, {theirs.fileno()})\n"
        f"{first}\nfrom {module} import main; main(connection)"
    )
    with theirs:
        return _starter(os.getpid()).submit(_start, code, theirs.fileno()).result(), ours


@cache
def _starter(process: int) -> Worker:
    """The thread of this process that starts all others.

    Linux sends `PR_SET_PDEATHSIG` when the *thread* that started a process ends, so this one stays to the last. A
    fork has no threads of its parent's: it gets its own.
    """
    worker = Worker("nanoinfer-start")
    worker.stop.atexit = False
    return worker


def _start(code: str, end: int) -> subprocess.Popen[bytes]:
    """Start a process that inherits this end. What it prints goes to where errors go."""
    passed: dict[str, Any] = {"pass_fds": [end]}
    if sys.platform == "win32":
        os.set_handle_inheritable(end, True)
        passed = {"close_fds": False}
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=2, **passed)


def begin(parent: int, end: int) -> Connection:
    """In the new process: the connection to its parent, with which it ends."""
    if sys.platform == "linux":  # kills it even if it hangs or is stopped; elsewhere it ends once it reads on
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has ended before the call
            os._exit(1)
    for name in ("SIGINT", "SIGTERM"):  # they come to all processes; the parent says when it is over
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # this process ends without a last flush
    connection: Connection = END_TYPE(end)
    return connection


def die(error: BaseException) -> NoReturn:
    """End this process, and say why on standard error."""
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
    shown: str  # its repr
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return cls(kind, str(error), repr(error), "".join(traceback.format_exception(error)))

    def again(self) -> Exception:
        """The same, or the nearest that Python knows; caused by its traceback there unless it is a mere refusal."""
        error: Exception = getattr(builtins, self.kind)(self.text)
        if not isinstance(error, (ValueError, TypeError)):
            error.__cause__ = self.cause
        return error

    @property
    def cause(self) -> RuntimeError:
        """Its traceback there, as the cause of what is raised here."""
        return RuntimeError(f"in its process\n{self.trace}")
