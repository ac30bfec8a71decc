"""The engine's loop in a thread of its own: steps as long as there is work, whoever asked for it and reads it.

What happens a token happens here as little as possible: a row that has news is put on its reader's list. The reader
makes text and records of it, in their own thread and at their own pace.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from nanoinfer.engine.recorder import Recorder
from nanoinfer.engine.stats import Gauges
from nanoinfer.worker import Worker

if TYPE_CHECKING:
    from nanoinfer.engine.queue import Queued as Row
    from nanoinfer.engine.queue import QueueEngine
    from nanoinfer.requests import Request

CLOSED = "this LLM is closed"


@dataclass(eq=False)
class Mailbox:
    """Rows that have news for one reader. post: called in the engine's thread after each step that had any."""

    post: Callable[[list[Any]], object]
    news: list[Any] = field(default_factory=list)  # a row once for each time that it is to be heard of


class EngineLoop:
    """Runs an engine in a thread, for any number of readers in other threads.

    step: called for each step of the engine. worker: the thread, which other jobs that need the engine may use between
    two calls. failure: why a step failed, the last time that one did. All requests then end with it; the engine itself
    is as new. died: the first such cause, as a result that threads can wait for, and event loops with
    `asyncio.wrap_future`. pace: seconds from the beginning of a step to that of the next, at least; 0 waits for
    nothing.
    """

    def __init__(self, core: QueueEngine, step: Callable[[Any], object] = lambda core: core.step()) -> None:
        self.core: Any = core
        self.worker, self._step = Worker("nanoinfer"), step
        self._mailboxes: set[Mailbox] = set()
        self._called = False  # whether a job that has not begun will look for what is to be done
        self.on_idle: Callable[[], object] = lambda: None  # called in the worker's thread when there is nothing to do
        self.failure: BaseException | None = None
        self.died: Future[BaseException] = Future()
        self.pace = 0.0
        self._observers: deque[Recorder | None] = deque()  # the last of these watches from the next step on

    def submit(
        self, requests: Sequence[Request], mailbox: Mailbox, asked: float, every_token: bool = False, known: Any = None
    ) -> list[Row]:
        """Let the requests run. Their rows are posted when they have ended, and with each token if `every_token`.

        asked: when they were asked for, time.perf_counter(). known: of each, as for `QueueEngine.submit`. RuntimeError
        where the worker has been stopped.
        """
        self.worker.check_process()
        self._mailboxes.add(mailbox)
        each = zip(requests, known or [()] * len(requests), strict=True)
        submit = partial(self.core.submit, listener=mailbox.news.append, every_token=every_token, asked=asked)
        rows = [submit(request, known=tokens) for request, tokens in each]
        if not self._called:  # jobs that wait until there is nothing to do would be as many as the requests until then
            self._called = True
            self.worker.submit(self._run)
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

    def watch(self, post: Callable[[dict[str, Any]], object] | None, texts: bool) -> None:
        """From the next step on, call post(facts) in the engine's thread with what each step did; None ends that.

        The facts are those of a `Recorder`. texts: whether prompts and tokens are in them.
        """
        if not self.closed:
            self._observers.append(Recorder(self.core, post, texts) if post else None)

    def set_pace(self, seconds: float) -> None:
        """From now on, let so many seconds go by from the beginning of a step to that of the next, at least."""
        self.pace = seconds

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return not self.closed and self.core.busy

    @property
    def gauges(self) -> Gauges:
        return Gauges() if self.closed else self.core.gauges

    @property
    def closed(self) -> bool:
        return self.worker.stopping.is_set()

    def close(self) -> None:
        """Stop the worker, and let go of the engine. Open requests end with a RuntimeError."""
        self.worker.stop()
        del self.core

    def _run(self) -> None:
        """In the engine's thread: steps, as long as there is anything to do."""
        self._called = False  # ahead of the look
        try:
            while self.core.busy:
                if self.closed:
                    raise RuntimeError(CLOSED)
                while self._observers:  # an engine has the same one all through a step
                    self.core.observer = self._observers.popleft()
                began = time.perf_counter()
                self._step(self.core)
                self._deliver()
                while (left := began + self.pace - time.perf_counter()) > 0 and not self.closed:
                    self.worker.stopping.wait(min(left, 0.05))  # in short pieces: the pace may be changed meanwhile
        except BaseException as error:  # whatever it is, those who wait for tokens must hear of it
            self._fail(error)
        self.on_idle()

    def _deliver(self) -> None:
        """Post the news, once a step is over: who gets the last of them may use the engine."""
        for mailbox in tuple(self._mailboxes):
            if news := mailbox.news.copy():
                mailbox.news.clear()
                mailbox.post(news)

    def _fail(self, cause: BaseException) -> None:
        self.failure = cause
        try:
            self.core.abandon(cause)
        finally:
            self._deliver()
            if not self.closed and not self.died.done():
                self.died.set_result(cause)

    def fail(self, cause: BaseException) -> None:
        """What the engine needs has gone, as nobody may have noticed yet: all requests end."""
        if not self.closed:
            self.worker.submit(self._fail, cause)
            self.worker.submit(self.on_idle)  # who listens to that alone hears of it
