"""The loop of an engine that runs in another process, as an `AsyncLLM` sees it. Chapter 5."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from operator import sub
from threading import RLock, Thread
from typing import Any

from nanoinfer.config import Facts
from nanoinfer.engine.loop import CLOSED, Mailbox
from nanoinfer.engine.stats import Gauges, Stats
from nanoinfer.records import FinishReason
from nanoinfer.requests import Metrics, Request
from nanoinfer.serve.engine_link import Link, News
from nanoinfer.serve.processes import Raised, how

Post = Callable[[dict[str, Any]], object]
PATIENCE = 3.0  # seconds that a process has to end; it keeps nothing that a kill could lose


class EngineDied(RuntimeError):
    """The engine's process is gone, or a step in it failed: its traceback there is the text of __cause__."""


@dataclass(eq=False)
class Row:
    """A sequence in another process: what its readers ask of a `Scored` one, which needs torch."""

    request: Request
    asked: float
    listener: Callable[[Row], object] | None
    every_token: bool
    arrived: int = -1
    began: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    prompt_logprobs: list[list[float]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    cancelled: BaseException | None = None
    ended: bool = False

    def metrics(self) -> Metrics:
        return Metrics(ttft_s=self.times[0] - self.asked, itl_s=tuple(map(sub, self.times[1:], self.times)))


class RemoteLoop:
    """As an `EngineLoop`, for one in another process. Its rows are records of what that has told of its own.

    Numbers of rows are never used again, so news of a row that was cancelled meanwhile are news of nobody.
    first: of these numbers. leave_behind: is given the rows that had not ended when the engine died, and keeps those
    that go on elsewhere; the others, which it returns, end with the cause.
    """

    def __init__(self, process: subprocess.Popen[bytes], first: int = 0) -> None:
        assert process.stdin
        assert process.stdout
        self.process, self.closed = process, False
        self.link = Link(process.stdout, process.stdin, self._fail)
        self.failure: BaseException | None = None
        self.died: Future[BaseException] = Future()
        self.ready: Future[Facts] = Future()
        self.stats, self._gauges = Stats(), Gauges()
        self._rows: dict[int, Row] = {}  # those that have not ended, by number
        self._mailboxes: set[Mailbox] = set()
        self._warming: dict[int, tuple[Future[None], Callable[[int, int], None] | None]] = {}
        self._watch: tuple[int, Post | None] = 0, None
        self._pace, self._next, self._lock = 0.0, first, RLock()
        self.leave_behind: Callable[[list[Row]], list[Row]] = lambda rows: rows
        Thread(target=self._receive, name="nanoinfer-receive", daemon=True).start()

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

    @property
    def pace(self) -> float:
        return self._pace

    @pace.setter
    def pace(self, seconds: float) -> None:
        self._pace = seconds
        self.link.send(("pace", seconds))

    def submit(
        self, requests: Sequence[Request], mailbox: Mailbox, asked: float, every_token: bool = False
    ) -> list[Row]:
        """As `EngineLoop.submit`."""
        rows = [Row(request, asked, mailbox.news.append, every_token) for request in requests]
        self._begin(rows, mailbox, asked, every_token, None)
        return rows

    def go_on(self, row: Row, mailbox: Mailbox) -> None:
        """A row of an engine that has died goes on here, behind the tokens that it has."""
        row.listener = mailbox.news.append
        self._begin([row], mailbox, row.asked, row.every_token, [row.token_ids])

    def _begin(
        self, rows: list[Row], mailbox: Mailbox, asked: float, every_token: bool, known: list[list[int]] | None
    ) -> None:
        with self._lock:  # else they might miss the end of the engine
            if self.closed or self.failure:
                raise RuntimeError(CLOSED if self.closed else f"the engine has died: {self.failure}") from self.failure
            first, self._next = self._next, self._next + len(rows)
            for number, row in enumerate(rows, first):
                row.arrived = number
                self._rows[number] = row
            self._mailboxes.add(mailbox)
            self.link.send(("submit", first, [row.request for row in rows], asked, every_token, known))
        time.sleep(0)  # the link's thread has its turn now; of a thread that goes on, Python takes the next after 5 ms

    def cancel(self, rows: Sequence[Row]) -> None:
        """As `EngineLoop.cancel`; it takes no lock, so finalizers may call it."""
        left = [row for row in rows if self._rows.pop(row.arrived, None)]
        for row in left:
            row.cancelled, row.ended = CancelledError("cancelled"), True
        if left:
            self.link.send(("cancel", [row.arrived for row in left]))

    def leave(self, mailbox: Mailbox) -> None:
        self._mailboxes.discard(mailbox)

    def watch(self, post: Post | None, texts: bool) -> None:
        """As `EngineLoop.watch`, but post is called in the thread that takes messages."""
        watched = self._watch[0] + 1
        self._watch = watched, post
        self.link.send(("watch", None if post is None else watched, texts))

    def warm_up(self, on_capture: Callable[[int, int], None] | None) -> Future[None]:
        done: Future[None] = Future()
        with self._lock:
            if self.closed or self.failure:
                raise RuntimeError(CLOSED if self.closed else f"the engine has died: {self.failure}") from self.failure
            call, self._next = self._next, self._next + 1
            self._warming[call] = done, on_capture
            self.link.send(("warm_up", call))
        return done

    def _receive(self) -> None:
        """In a thread: take messages until there are no more."""
        try:
            while True:
                message = self.link.receive()
                if isinstance(message, News):
                    self._take(message)
                elif isinstance(message, Facts):
                    self._gauges = Gauges(blocks=message.blocks)
                    self.ready.set_result(message)
                elif isinstance(message, Raised):
                    self.ready.set_exception(message.again())
        except EOFError:
            self._fail(EngineDied(f"the engine's process has ended: {how(self.process, PATIENCE)}"))
        except Exception as error:
            self._fail(error)

    def _take(self, news: News) -> None:
        self.stats, self._gauges = news.stats, news.gauges
        rows, tokens, times, at = self._rows, news.tokens, news.times, 0
        for number, began in news.begun:
            if row := rows.get(number):
                row.began = began
        for number, count in zip(news.numbers, news.counts, strict=True):
            if row := rows.get(number):
                if count == 1:
                    row.token_ids.append(tokens[at])
                    row.times.append(times[at])
                else:
                    row.token_ids += tokens[at : at + count]
                    row.times += times[at : at + count]
                if row.every_token and (listener := row.listener):
                    for _ in range(count):
                        listener(row)
            at += count
        self._take_extras(news)
        self._deliver()
        for other in news.others:
            getattr(self, f"_on_{other[0]}")(*other[1:])
        if news.failure:
            error = EngineDied(f"a step failed: {news.failure[0]}")
            error.__cause__ = RuntimeError(f"in the engine's process\n{news.failure[1]}")
            self._fail(error)

    def _take_extras(self, news: News) -> None:
        """What few rows have, and their ends."""
        rows = self._rows
        for number, reason, cause, logprobs, prompt, when in news.extras:
            if row := rows.get(number):
                row.logprobs += logprobs
                row.prompt_logprobs += prompt
                row.times += when
                if cause and not news.failure:
                    self._end_alone(number, cause)
                elif reason:
                    row.finish_reason, row.ended = reason, True
                    rows.pop(number, None)
                    if not (row.every_token and row.token_ids):  # else it was told of the last token
                        self._tell(row)
                    row.listener = None  # it may hold this

    def _end_alone(self, number: int, cause: str) -> None:
        """One request has failed there, and the others go on."""
        if row := self._rows.pop(number, None):
            row.cancelled, row.ended = RuntimeError(f"this request has failed in the engine: {cause}"), True
            self._tell(row)
            row.listener = None

    def _on_refused(self, first: int, count: int, cause: str) -> None:
        for number in range(first, first + count):
            self._end_alone(number, cause)
        self._deliver()

    def _on_event(self, watched: int, event: dict[str, Any]) -> None:
        current, post = self._watch
        if post and current == watched:
            post(event)

    def _on_progress(self, call: int, done: int, count: int) -> None:
        warmed, on_capture = self._warming.get(call, (None, None))
        try:
            if on_capture:
                on_capture(done, count)
        except Exception as error:
            if warmed and self._warming.pop(call, None):
                warmed.set_exception(error)

    def _on_warm(self, call: int, error: tuple[str, str] | None) -> None:
        done, _ = self._warming.pop(call, (Future[None](), None))
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(RuntimeError(f"the warm-up failed: {error[0]}\n{error[1]}"))

    def _fail(self, cause: BaseException) -> None:
        """Nothing more will come: whoever waits for anything hears why. Only the first cause counts."""
        with self._lock:
            if self.failure:
                return
            self.failure = RuntimeError(CLOSED) if self.closed else cause
            rows, self._rows = list(self._rows.values()), {}
            warming, self._warming = list(self._warming.values()), {}
        for row in rows if self.closed else self.leave_behind(rows):
            row.cancelled, row.ended = self.failure, True
            self._tell(row)
            row.listener = None
        self._deliver()
        if not self.ready.done():
            self.ready.set_exception(self.failure)
        for done, _ in warming:
            done.set_exception(self.failure)
        if not self.closed:
            self.died.set_result(self.failure)

    def _tell(self, row: Row) -> None:
        if row.listener:
            row.listener(row)

    def _deliver(self) -> None:
        for mailbox in tuple(self._mailboxes):
            mailbox.deliver()

    def close(self) -> None:
        """Let the process end, and wait until it has. Open requests end with a RuntimeError."""
        self.closed = True
        self.link.close()
        self._fail(RuntimeError(CLOSED))
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
