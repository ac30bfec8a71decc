"""One thread that runs jobs in order. It ends with its owner, or before the interpreter does.

`concurrent.futures` would finish all jobs first: a program that leaves a stream open would not end before its text.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread, current_thread
from typing import Any


class Worker:
    """stopping: set when jobs should come to an end; a long one looks at it now and then."""

    def __init__(self, name: str) -> None:
        self.stopping, self._process = Event(), os.getpid()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        thread = Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        thread.start()
        self.stop = weakref.finalize(self, _stop, self.stopping, self._jobs, thread)  # at exit, too

    def check_process(self) -> None:
        """Raise RuntimeError in a forked child, to which no thread of its parent's has come along."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "this LLM belongs to the process that forked this one: make the LLM in the process that uses it"
            )

    def submit(self, job: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run job(*args) after all jobs that were submitted before."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(job(*args))
            except BaseException as error:
                future.set_exception(error)

        self._jobs.put(run)
        return future


def _work(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # what it holds may be the last reference to the owner


def _stop(stopping: Event, jobs: SimpleQueue[Callable[[], None] | None], thread: Thread) -> None:
    stopping.set()
    jobs.put(None)
    if thread is not current_thread():
        thread.join()
