"""The parent's side of a graded worker: an empty environment, confined before it gets a file, removed completely."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nanocourse.checks import wire
from nanocourse.checks.clock import Clock
from nanocourse.checks.worker import START_LIMIT_S, Lend, Worker
from nanocourse.exercises.outcomes import Outcome
from nanocourse.grade.isolation import system
from nanocourse.grade.isolation.confine import Policy, to_start_at_all

MAX_ASKS = 5000  # calls of lent functions that one call may make; in a scene, where engines are tested, ten times that
LENT_TIMES = 3  # times its limit, in seconds of our own processor time, that one call may let us work
LENT_BYTES = 64 << 10  # of arguments; enough for every exercise, and too little to make the parent work long
MAX_ENTRIES = 2000  # names in a scratch folder
# Libraries that would start threads of their own at import, before the worker is confined.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Unconfined(Exception):
    """A worker did not confine itself as asked; no student's code was run in it."""


class GradedWorker(Worker):
    """A worker with an empty environment, small messages, and output that is discarded."""

    graded = True
    server = "nanocourse.grade.confined_server:GradedServer"
    bounds = wire.Bounds(header=1 << 20, body=8 << 20)
    lent_values = 10_000
    kept = 0  # what is printed is dropped: a student could print the hidden inputs

    def __init__(self, device: str = "cpu", compiling: bool = False, prefix: Sequence[str] = ()) -> None:
        super().__init__(device, compiling, prefix)
        self._policy: Policy | None = None
        self._processes = 0  # beneath ours, before a student's code runs
        self._asks, self._lent_until, self._clock = 0, 0.0, Clock(self.pid, 0.0)
        self.sweep: Callable[[], object] = lambda: None  # ends what the worker has started

    def confine(self, policy: Policy) -> dict[str, str]:
        """Confine it. Returns the layers that are not available, with reasons. Unconfined if nothing was done."""
        reply = self._ask({"op": "confine", "policy": asdict(policy)}, [], Clock(self.pid, START_LIMIT_S))
        if not isinstance(reply, tuple) or reply[0].get("op") != "confined":
            self.close()
            raise Unconfined(f"a worker could not be confined: {reply}")
        self._policy, self._processes = policy, system.started_by(self.pid)
        missing: dict[str, str] = reply[0]["missing"]
        return missing

    def _ask(
        self, header: dict[str, Any], bodies: list[bytes], clock: Clock, lend: Lend | None = None
    ) -> tuple[dict[str, Any], bytes] | Outcome:
        """As any worker, which is ended if it asks too often for lent functions within one call or scene."""
        if clock is not self._clock:
            self._clock, self._asks = clock, MAX_ASKS * (10 if "play" in header else 1)
            self._lent_until = time.thread_time() + LENT_TIMES * clock.limit_s

        def bounded(asked: dict[str, Any], body: bytes) -> tuple[dict[str, Any], list[bytes]]:
            assert lend is not None
            self._asks -= 1
            left = self._lent_until - time.thread_time()
            if self._asks < 0 or len(body) > LENT_BYTES or left < 0:
                raise wire.WireError("it asked a lent function too often, or with too much")
            with interrupted(left):
                return lend(asked, body)

        return super()._ask(header, bodies, clock, bounded if lend else None)

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


def within(folder: Path, limit: int) -> bool:
    """Whether a folder holds at most this many bytes, in not too many files."""

    def unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # else it went away while we looked
            raise error

    size, entries = 0, 0
    try:
        for place, folders, files in os.walk(folder, onerror=unreadable):
            entries += len(folders) + len(files)
            for name in (*folders, *files):
                with contextlib.suppress(FileNotFoundError):
                    status = os.lstat(os.path.join(place, name))
                    size += getattr(status, "st_blocks", -(-status.st_size // 512)) * 512
            if size > limit or entries > MAX_ENTRIES:
                return False
    except OSError:
        return False  # it was made unreadable, to us
    return True


class Pool:
    """Workers one after the other. The next one imports torch while the current one is busy.

    prefix: a command that runs a worker. spares: whether to start that next one; False before the last is taken.
    """

    def __init__(self, prefix: Sequence[str] = (), spares: bool = True) -> None:
        self._taken: GradedWorker | None = None
        self._spare: GradedWorker | None = None
        self.prefix, self.spares = prefix, spares
        self.known, self.strays = system.children(), 0

    def take(self, policy: Policy, compiling: bool = False) -> tuple[GradedWorker, dict[str, str]]:
        """A confined worker, and the layers that it lacks. The last one is ended, with everything it started."""
        self.clear()
        if compiling:
            self._taken = self._new(compiling=True)
        else:
            self._taken = self._spare or self._new()
            self._spare = self._new() if self.spares else None
        return self._taken, self._taken.confine(policy)

    def clear(self) -> None:
        """End the worker that was taken, and whatever else still runs."""
        if self._taken is not None:
            self._taken.close()
            self._taken = None
        self.sweep()

    def sweep(self) -> None:
        """End every child process that is not a worker of ours."""
        own = {worker.pid for worker in (self._taken, self._spare) if worker is not None}
        self.strays += system.end_strays(self.known | own)

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
