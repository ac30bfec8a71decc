"""The other ranks' processes, as the first rank sees them: told what to do, watched, and ended together. Chapter 8.

Orders are plain host data, one connection a rank, and nobody answers: what ranks compute they exchange in collectives.
A collective that one rank has left never ends by itself. So whoever dies, fails or hangs is noticed here, and then all
others are killed; that ends the first rank's collectives too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from nanoinfer.parallel.processes import Raised, how, spawn

if TYPE_CHECKING:
    import torch

    from nanoinfer.parallel.group import Group

LOOK = 0.25  # seconds from one look at the step that runs to the next
STEP = 30.0  # seconds that a step may take, or a capture
GRACE = 0.5  # seconds that a death has to be noticed, where others fail because of it
PATIENCE = 5.0  # seconds that a process has to end
HERE = "here"
CHILD = "nanoinfer.parallel.follower"


@dataclass(frozen=True)
class Start:
    """To a rank: who it is, where it finds the others, and what to make: a `kind`. The first message."""

    kind: type[Any]
    rank: int
    port: int
    model: str | Path | None
    revision: str | None
    settings: dict[str, Any]


class Rank:
    """One rank, and the processes of those that do what it does, one for each `Start`: only the first rank has any.

    group, device: what it does together with them, and where, once they have met. cause: why they have ended, once they
    have. on_failure: then called with the cause, in a thread of its own.
    step_s: how long a step may take, or what else is watched, from one sign of life to the next.
    """

    group: Group
    device: torch.device

    def __init__(self, starts: Sequence[Start]) -> None:
        self.cause: BaseException | None = None
        self.on_failure: Callable[[BaseException], object] = lambda cause: None
        self.step_s = STEP
        self._watched: tuple[str, float] | None = None  # what runs, and since when: time.perf_counter()
        spawned = [spawn(CHILD) for _ in starts]
        self.processes = [process for process, _ in spawned]
        self._links = [link for _, link in spawned]
        self._lock, self._closing, self._over = Lock(), Event(), Event()
        for link, start in zip(self._links, starts, strict=True):
            link.send(start)

    def wait_until_here(self) -> None:
        """Wait until they can be met in collectives, and watch them from then on."""
        for link in self._links:
            if error := self._heard(link):
                self._end(error)
                self.check()
        Thread(target=self._watch, name="nanoinfer-ranks", daemon=True).start()

    def tell(self, *order: Any) -> None:
        """All ranks are to do this, in the order of the calls. Raises what they have ended with, if they have."""
        self.check()
        try:
            for link in self._links:
                link.send(order)
        except OSError as error:
            raise self.failed(error) from error

    def check(self) -> None:
        """Raise what they have ended with, if they have."""
        if self.cause:
            raise copy(self.cause) from self.cause

    def failed(self, error: BaseException) -> BaseException:
        """This rank has failed: end all. What to raise: this error, or the end of another rank that is behind it."""
        if not self._links:
            return error
        self._over.wait(2 * GRACE)
        self._end(error)
        return error if self.cause in (error, None) else copy(self.cause)

    def threads(self, asked: int | None) -> int:
        """Of a step on a CPU."""
        return asked or max(1, (os.cpu_count() or 1) // self.group.size)

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers; what another rank has failed with, if it has."""
        try:
            return self.group.least(number)
        except RuntimeError as error:
            raise self.failed(error) from error

    def agree(self, here: bool) -> bool:
        """Whether it is so on all ranks. That is a sign of life of all: what is watched may take as long again."""
        agreed = self.least(int(here)) == 1
        if watched := self._watched:
            self._watched = watched[0], time.perf_counter()
        return agreed

    @contextmanager
    def all_do(self, *order: Any) -> Iterator[None]:
        """What follows is done by the others too: between two steps."""
        self.tell(*order)
        try:
            with self.watched(order[0]):
                yield
        except BaseException as error:  # the others may be in the midst of it
            raise self.failed(error) from error

    @contextmanager
    def watched(self, what: str) -> Iterator[None]:
        """So long as this runs, ranks may hang."""
        self._watched = what, time.perf_counter()
        try:
            yield
        finally:
            self._watched = None

    def close(self) -> None:
        """End them and wait until they have. It may be called again."""
        self._closing.set()
        for link in self._links:
            with suppress(OSError):  # it has ended already
                link.send(None)
        for process in self.processes:
            how(process, PATIENCE)
            process.kill()  # nothing, if it has ended
            process.wait()

    def _end(self, cause: BaseException) -> None:
        """All end, for this cause, unless they have already."""
        with self._lock:
            if self.cause or self._closing.is_set():
                return
            self.cause = cause
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        with suppress(Exception):  # it is over, whatever a broken communicator says, or before they have met
            self.group.abort()  # ends what this rank's GPU still waits for
        self._over.set()
        Thread(target=self.on_failure, args=(cause,), daemon=True).start()

    def _heard(self, link: Any) -> BaseException | None:
        """What a rank has failed with that has something to say, or has ended; None: it is here, and all is well."""
        rank = self._links.index(link) + 1
        try:
            message: Raised | str = link.recv()
        except (EOFError, OSError):
            return RuntimeError(f"rank {rank} has ended: {how(self.processes[rank - 1], GRACE)}")
        if isinstance(message, str):
            return None
        error = message.again()
        if not error.__cause__:  # a refusal, which needs no more
            return error
        failed = RuntimeError(f"rank {rank} has failed: {message.text}")
        failed.__cause__ = error.__cause__
        return failed

    def _watch(self) -> None:
        """In a thread: until all have ended. Others may fail because one has died, so deaths are looked at first."""
        while not self.cause and not self._closing.is_set():
            failed = [error for link in wait(self._links, LOOK) if (error := self._heard(link))]
            failed.sort(key=lambda error: bool(error.__cause__))
            watched = self._watched
            if watched and time.perf_counter() - watched[1] > self.step_s:
                what = watched[0].replace("_", " ")
                failed.append(RuntimeError(f"no {what} has ended within {self.step_s:g} s: a rank hangs"))
            if failed:
                self._end(failed[0])
