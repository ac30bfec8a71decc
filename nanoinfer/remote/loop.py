"""The loop of an engine that runs in another process, as an `LLM` sees it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from itertools import count
from queue import SimpleQueue
from threading import RLock, Thread
from typing import Any

from nanoinfer.config import Facts
from nanoinfer.engine.loop import CLOSED, Mailbox
from nanoinfer.engine.stats import Gauges, Stats
from nanoinfer.parallel.processes import Raised, how, spawn
from nanoinfer.records import FinishReason
from nanoinfer.remote.link import Link, obey
from nanoinfer.requests import Request

PATIENCE = 3.0  # seconds that a process has to end; it keeps nothing that a kill could lose


class EngineDied(RuntimeError):
    """The engine's process is gone, or a step in it failed: its traceback there is the text of __cause__."""


@dataclass(eq=False)
class Row:
    """A sequence in another process: what its readers ask of a `Queued` one, which needs torch."""

    request: Request
    mailbox: Mailbox
    asked: float
    every_token: bool
    number: int = -1  # its name in messages
    moved: bool = False  # whether it has seen an engine die
    began: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    prompt_logprobs: list[list[float]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    cancelled: BaseException | None = None
    ended: bool = False


class RemoteLoop:
    """As an `EngineLoop`, for one in another process. Its rows are records of what that has told of its own.

    make: a kind of LLM, and its model, revision and settings. ready: the engine's facts, once it is made. leave_behind:
    is given the rows that had not ended when the engine died, and keeps those that go on elsewhere; the others, which
    it returns, end with the cause.
    """

    def __init__(self, *make: Any) -> None:
        self.process, connection = spawn("nanoinfer.remote.child")
        self.link = Link(connection, self._fail)
        self.closed = False
        self.failure: BaseException | None = None
        self.ready: Future[Facts] = Future()
        self.died: Future[BaseException] = Future()
        self._over: Future[BaseException] = Future()  # as died, and where it was closed too
        self.leave_behind: Callable[[list[Row]], list[Row]] = lambda rows: rows
        self.stats, self._gauges = Stats(), Gauges()
        self._rows: dict[int, Row] = {}  # those that have not ended, by number
        self._listeners: dict[int, Callable[[Any], object]] = {}
        self._watched = -1  # who listens to what steps do
        self._numbers, self._lock = count(), RLock()
        Thread(target=self._receive, name="nanoinfer-receive", daemon=True).start()
        self.link.call("in_thread", "serve", *make)

    # What is asked of it

    @property
    def busy(self) -> bool:
        """Whether there are rows that have not ended."""
        return bool(self._rows)

    @property
    def steps(self) -> int | None:
        """As `AsyncLLM.steps`."""
        return self.stats.steps if self.busy else None

    @property
    def load(self) -> int:
        """How many rows have not ended: known when one is sent, and not when it is heard of."""
        return len(self._rows)

    @property
    def gauges(self) -> Gauges:
        return Gauges() if self.closed or self.failure else self._gauges

    def submit(
        self, requests: Sequence[Request], mailbox: Mailbox, asked: float, every_token: bool = False
    ) -> list[Row]:
        """As `EngineLoop.submit`."""
        rows = [Row(request, mailbox, asked, every_token) for request in requests]
        self.begin(rows, asked, every_token)
        return rows

    def begin(self, rows: list[Row], asked: float, every_token: bool) -> None:
        """Let rows run here, behind the tokens that they may have from an engine that has died."""
        with self._lock:  # else they might miss the end of the engine
            self._check()
            for row in rows:
                row.number = next(self._numbers)
                self._rows[row.number] = row
            requests = [replace(row.request, index=row.number) for row in rows]
            self.link.call("submit", requests, [row.token_ids for row in rows], asked, every_token)
        time.sleep(0)  # the link's thread has its turn now; of a thread that goes on, Python takes the next after 5 ms

    def _check(self) -> None:
        """RuntimeError where nothing can be asked any more."""
        if self.closed or self.failure:
            raise RuntimeError(CLOSED if self.closed else f"the engine has died: {self.failure}") from self.failure

    def cancel(self, rows: Sequence[Row]) -> None:
        """As `EngineLoop.cancel`, of those rows that are here; it takes no lock, so finalizers may call it."""
        here = self._rows
        left = [row for row in rows if here.get(row.number) is row and here.pop(row.number, None) is row]
        for row in left:
            row.cancelled, row.ended = CancelledError("cancelled"), True
        if left:
            self.link.call("cancel", [row.number for row in left])

    def leave(self, mailbox: Mailbox) -> None:
        """As `EngineLoop.leave`: only its rows know it here, and they have been cancelled."""

    def set_pace(self, seconds: float) -> None:
        """As `EngineLoop.set_pace`."""
        self.link.call("set_pace", seconds)

    def watch(self, post: Callable[[dict[str, Any]], object] | None, texts: bool) -> None:
        """As `EngineLoop.watch`, but post is called in the thread that takes messages."""
        self._listeners.pop(self._watched, None)
        self._watched = next(self._numbers)
        if post:
            self._listeners[self._watched] = post
        self.link.call("watch", self._watched if post else None, texts)

    def warm_up(self, on_capture: Callable[[int, int], None] | None = None) -> None:
        """As `LLM.warm_up`."""
        self._check()
        told, listener = SimpleQueue[Any](), next(self._numbers)
        self._listeners[listener] = told.put
        self._over.add_done_callback(lambda over: told.put(over.result()))
        self.link.call("in_thread", "warm_up", listener)
        try:
            while isinstance(progress := told.get(), tuple):
                if on_capture:
                    on_capture(*progress)
        finally:
            del self._listeners[listener]
        if isinstance(progress, Raised):
            raise RuntimeError(f"the warm-up failed: {progress.shown}") from progress.cause
        if progress:
            raise progress

    def close(self) -> None:
        """Let the process end, and wait until it has. Open requests end with a RuntimeError."""
        self.closed = True
        self.link.close()
        self._fail(RuntimeError(CLOSED))
        how(self.process, PATIENCE)
        self.process.kill()  # nothing, if it has ended
        self.process.wait()

    # What it tells

    def _receive(self) -> None:
        """In a thread: hear of what is new until nothing more can be."""
        try:
            obey(self.link.connection, self)
            raise EngineDied(f"the engine's process has ended: {how(self.process, PATIENCE)}")
        except Exception as error:
            self._fail(error)

    def made(self, what: Facts | Raised) -> None:
        """The LLM is there, or cannot be."""
        if isinstance(what, Raised):
            self.ready.set_exception(what.again())
        else:
            self._gauges = Gauges(blocks=what.blocks)
            self.ready.set_result(what)

    def hear(self, listener: int, what: Any) -> None:
        """Something for a listener, if it still listens."""
        self._listeners.get(listener, lambda what: None)(what)

    def take(self, news: Sequence[Any], failure: Raised | None, stats: Stats, gauges: Gauges) -> None:
        """What is new of all rows since the last time: of each what `RemoteEngine.news_of` tells."""
        self.stats, self._gauges = stats, gauges
        heard = list[Row]()
        for number, tokens, times, began, logprobs, prompt_logprobs, reason, error in news:
            if not (row := self._rows.get(number)):
                continue
            row.began = began
            row.times += times
            row.logprobs += logprobs
            row.prompt_logprobs += prompt_logprobs
            row.token_ids += tokens
            if ended := bool(reason or error):  # in this order: where it has ended, all of it is there
                row.cancelled = RuntimeError(f"this request has failed in the engine: {error}") if error else None
                row.finish_reason, row.ended = reason, True
                self._rows.pop(number, None)
            heard += [row] * (len(tokens) if row.every_token and tokens else ended)
        post(heard)
        if failure:
            died = EngineDied(f"a step failed: {failure.shown}")
            died.__cause__ = failure.cause
            self._fail(died)

    def _fail(self, cause: BaseException) -> None:
        """Nothing more will come: whoever waits for anything hears why. Only the first cause counts."""
        with self._lock:
            if self.failure:
                return
            self.failure = RuntimeError(CLOSED) if self.closed else cause
            rows, self._rows = list(self._rows.values()), {}
        left = rows if self.closed else self.leave_behind(rows)
        for row in left:
            row.cancelled, row.ended = self.failure, True
        post(left)
        self._over.set_result(self.failure)
        if not self.ready.done():
            self.ready.set_exception(self.failure)
        if not self.closed:
            self.died.set_result(self.failure)


def post(rows: list[Row]) -> None:
    """Tell the readers of these rows, each of all of its own at once."""
    news: defaultdict[Mailbox, list[Row]] = defaultdict(list)
    for row in rows:
        news[row.mailbox].append(row)
    for mailbox, its in news.items():
        mailbox.post(its)
