"""The parent's side of a graded worker: an empty environment, confined before it gets a file, removed completely."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nanocourse.checks import wire
from nanocourse.checks.clock import Clock
from nanocourse.checks.play import Play
from nanocourse.checks.worker import START_LIMIT_S, Lend, Worker
from nanocourse.exercises.outcomes import Outcome
from nanocourse.grade.isolation import system
from nanocourse.grade.isolation.confine import Policy, to_start_at_all

MAX_ASKS = 5000  # calls of lent functions that one call may make; in a scene, where engines are tested, ten times that
LENT_TIMES = 3  # times its limit, in seconds of our own processor time, that one call may let us work
MAX_ENTRIES = 2000  # names in a scratch folder
# Libraries that would start threads of their own at import, before the worker is confined.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Setting:
    """What a worker is given before the student's file. files: paths and names of chapter files that it reads first.

    helpers: modules of the package that it keeps, as sources. watched: whether calls are traced, which is done if the
    package itself cannot be hidden. scenes: whether the student's function is asked by one.
    """

    policy: Policy
    files: tuple[tuple[str, str], ...] = ()
    helpers: dict[str, str] = field(default_factory=dict)
    watched: bool = False
    scenes: bool = False


class Unconfined(Exception):
    """A worker did not confine itself as asked; no student's code was run in it."""


class GradedWorker(Worker):
    """A worker with an empty environment, small messages, and output that is discarded."""

    graded = True
    server = "nanocourse.grade.confined_server:GradedServer"
    bounds = wire.Bounds(header=1 << 20, body=8 << 20)
    lent_values = 10_000

    def __init__(self, device: str = "cpu", compiling: bool = False, prefix: Sequence[str] = ()) -> None:
        super().__init__(device, compiling, prefix)
        self._policy: Policy | None = None
        self._processes = 0  # beneath ours, before a student's code runs
        self._asks, self._most, self._lent_until = 0, MAX_ASKS, 0.0
        self.sweep: Callable[[], object] = lambda: None  # ends what the worker has started

    def confine(self, setting: Setting) -> dict[str, str]:
        """Confine it. Returns the layers that are not available, with reasons. Unconfined if nothing was done."""
        asked = {
            "op": "confine", "policy": asdict(setting.policy), "files": list(setting.files),
            "helpers": setting.helpers, "watched": setting.watched, "scenes": setting.scenes,
        }  # fmt: skip
        reply = self._ask(asked, [], Clock(self.pid, START_LIMIT_S))
        if not isinstance(reply, tuple) or reply[0].get("op") != "confined":
            self.close()
            raise Unconfined(f"a worker could not be confined: {reply}")
        self._policy, self._processes = setting.policy, system.started_by(self.pid)
        missing: dict[str, str] = reply[0]["missing"]
        return missing

    def call(self, asked: Any, limit_s: float) -> Outcome:
        """The outcome of one call. A worker that asks the parent too often is ended."""
        self._asks, self._most, self._lent_until = 0, MAX_ASKS, time.thread_time() + LENT_TIMES * limit_s
        return super().call(asked, limit_s)

    def play(self, scene: Callable[..., Any], asked: Any, limit_s: float, kept: dict[str, Any]) -> Outcome:
        """The outcome of a scene, with the same bounds."""
        self._asks, self._most, self._lent_until = 0, 10 * MAX_ASKS, time.thread_time() + LENT_TIMES * limit_s
        return super().play(scene, asked, limit_s, kept)

    def _lend(
        self, functions: Sequence[Callable[..., Any]], asked: dict[str, Any], body: bytes
    ) -> tuple[dict[str, Any], list[bytes]]:
        with self._bounded(body):
            return super()._lend(functions, asked, body)

    def _lend_to(self, play: Play) -> Lend:
        lend = super()._lend_to(play)

        def bounded(asked: dict[str, Any], body: bytes) -> tuple[dict[str, Any], list[bytes]]:
            with self._bounded(body):
                return lend(asked, body)

        return bounded

    def _bounded(self, body: bytes) -> contextlib.AbstractContextManager[None]:
        """Within it one call of a lent function is answered, in the time that is left for all of them."""
        self._asks += 1
        if self._asks > self._most or len(body) > LENT_BYTES or time.thread_time() > self._lent_until:
            raise wire.WireError("it asked a lent function too often, or with too much")
        return interrupted(self._lent_until - time.thread_time())

    def _says(self, error: BaseException) -> str:
        """Nothing: a text could tell which of several engines is asked."""
        return "the function that was lent cannot do that"

    def _kill(self) -> None:
        super()._kill()
        self.sweep()  # a process that it has left behind may hold our pipes open

    def _environment(self) -> dict[str, str]:
        return ONE_THREAD | to_start_at_all()

    def _problem(self) -> str:
        if self._policy is None:
            return ""
        if not self._policy.starting and system.started_by(self.pid) > self._processes:
            return "it started another process"  # which would have its memory beside its own
        return "" if within(Path(self._policy.scratch), self._policy.scratch_size) else "it wrote more than it may"

    def _drain(self) -> None:
        """Read and discard what is printed: a student could print the hidden inputs."""
        stream = self._process.stderr
        assert stream is not None
        with contextlib.suppress(OSError, ValueError), stream:
            while os.read(stream.fileno(), 65536):
                pass


@contextlib.contextmanager
def interrupted(after_s: float) -> Iterator[None]:
    """Raise TimeoutError after so many seconds of our own processor time, in a main thread where signals tell them."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError("a lent function has worked for too long")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, max(after_s, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


LENT_BYTES = 64 << 10  # of arguments; enough for every exercise, and too little to make the parent work long


def within(folder: Path, limit: int) -> bool:
    """Whether a folder holds at most this many bytes, in not too many files."""
    size, entries, folders = 0, 0, [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                for entry in found:
                    entries += 1
                    status = entry.stat(follow_symlinks=False)
                    size += status.st_blocks * 512 if hasattr(status, "st_blocks") else status.st_size
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(entry.path)
                    if size > limit or entries > MAX_ENTRIES:
                        return False
        except FileNotFoundError:
            continue  # it went away while we looked
        except OSError:
            return False  # it was made unreadable, to us
    return True


class Pool:
    """Workers one after the other. The next one imports torch while the current one is busy.

    prefix: a command that runs a worker. spares: whether to start that next one; False before the last is taken.
    """

    def __init__(self, prefix: Sequence[str] = (), spares: bool = True) -> None:
        self._spare: GradedWorker | None = None
        self.prefix, self.spares = prefix, spares
        self.known = system.children() if system.LINUX else set()
        self._taken: list[GradedWorker] = []
        self.strays = 0

    def take(self, setting: Setting, compiling: bool = False) -> tuple[GradedWorker, dict[str, str]]:
        """A confined worker, and the layers that it lacks. Earlier ones are ended, with everything they started."""
        self.clear()
        if compiling:
            worker = self._new(compiling=True)
        else:
            worker = self._spare or self._new()
            self._spare = self._new() if self.spares else None
        self._taken.append(worker)
        return worker, worker.confine(setting)

    def clear(self) -> int:
        """End the workers that were taken and whatever else still runs. Returns the number of such strays."""
        before = self.strays
        for worker in self._taken:
            worker.close()
        self._taken.clear()
        self.sweep()
        return self.strays - before

    def sweep(self) -> None:
        """End every child process that is not a worker of ours."""
        own = [*self._taken, *([self._spare] if self._spare is not None else [])]
        if system.LINUX:
            self.strays += system.end_strays(self.known | {worker.pid for worker in own})

    def _new(self, compiling: bool = False) -> GradedWorker:
        made = GradedWorker(compiling=compiling, prefix=self.prefix)
        made.sweep = self.sweep
        return made

    def close(self) -> None:
        """End all workers."""
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        self.clear()


def fresh(folder: Path, user: int | None) -> Path:
    """An empty scratch folder for one worker."""
    for old in folder.iterdir():
        shutil.rmtree(old, ignore_errors=True)
    made = folder / f"{time.monotonic_ns()}"
    made.mkdir(mode=0o700)
    if user is not None:
        os.chown(made, user, user)
    return made
