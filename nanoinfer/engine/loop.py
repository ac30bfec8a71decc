"""The engine's loop in a thread of its own: steps as long as there is work, whoever asked for it and reads it.

What happens a token happens here as little as possible: a row that has news is put on its reader's list. The reader
makes text and records of it, in their own thread and at their own pace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nanoinfer.worker import Worker

if TYPE_CHECKING:
    from nanoinfer.engine.engine import Engine
    from nanoinfer.engine.scheduler import Row
    from nanoinfer.requests import Request
    from nanoinfer.threads import Threads

CLOSED = "this LLM is closed"


@dataclass(eq=False)
class Mailbox:
    """Rows that have news for one reader. post: called in the engine's thread after each step that had any."""

    post: Callable[[list[Row]], object]
    news: list[Row] = field(default_factory=list)  # a row once for each time that it is to be heard of


class EngineLoop:
    """Runs an engine in the thread of a worker, for any number of readers in other threads.

    failure: why a step failed, the last time that one did. All requests then end with it; the engine itself is as new.
    """

    def __init__(self, core: Engine, worker: Worker, threads: Threads | None) -> None:
        self.core, self._worker, self._threads = core, worker, threads
        self._mailboxes: set[Mailbox] = set()
        self.failure: BaseException | None = None

    def submit(
        self, requests: Sequence[Request], mailbox: Mailbox, asked: float, every_token: bool = False
    ) -> list[Row]:
        """Let the requests run. Their rows are posted when they have ended, and with each token if `every_token`.

        asked: when they were asked for, time.perf_counter(). RuntimeError where the worker has been stopped.
        """
        core = self.core
        self._mailboxes.add(mailbox)
        rows = [core.submit(request, mailbox.news.append, every_token=every_token, asked=asked) for request in requests]
        self._worker.submit(self._run)
        if self.closed:  # so the job may lie behind the worker's last one
            raise RuntimeError(CLOSED)
        return rows

    def cancel(self, rows: Sequence[Row]) -> None:
        """Nothing more is to come of these rows. Those that have ended stay as they are."""
        if not self.closed:
            for row in rows:
                self.core.cancel(row)

    def leave(self, mailbox: Mailbox) -> None:
        """Nobody reads it any more."""
        self._mailboxes.discard(mailbox)

    @property
    def closed(self) -> bool:
        return self._worker.stopping.is_set()

    def close(self) -> None:
        """Stop the worker, and let go of the engine. Open requests end with a RuntimeError."""
        self._worker.stop()
        del self.core

    def _run(self) -> None:
        """In the engine's thread: steps, as long as there is anything to do."""
        try:
            steps = self._steps()
            for _ in steps if self._threads is None else self._threads.run(steps, _decoded):
                pass
        except BaseException as error:  # whatever it is, those who wait for tokens must hear of it
            self.failure = error
            try:
                self.core.abandon(error)
            finally:
                self._deliver()

    def _steps(self) -> Iterator[list[Row]]:
        while self.core.busy:
            if self.closed:
                raise RuntimeError(CLOSED)
            settled = self.core.step()
            self._deliver()
            yield settled

    def _deliver(self) -> None:
        """Post the news, once a step is over: who gets the last of them may use the engine."""
        for mailbox in tuple(self._mailboxes):
            if mailbox.news:
                news = mailbox.news.copy()
                mailbox.news.clear()
                mailbox.post(news)


def _decoded(rows: list[Row]) -> int | None:
    """How many rows a step decoded; None for a step that ran prompts."""
    return len(rows) if rows and all(len(row.token_ids) > 1 for row in rows) else None
