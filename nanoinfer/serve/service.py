"""What the server knows besides HTTP: whether it is ready, who is being served, who may come in, and the books.

The engine is loaded in a thread of its own, so that `/live` answers meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from nanoinfer.async_llm import AsyncLLM, TokenStream
from nanoinfer.serve.books import Books, Outcome
from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.errors import ApiError, Gone, unavailable

Phase = Literal["loading", "warming up", "ready", "draining", "dead"]


class Ticket:
    """One request on its way through the server."""

    def __init__(self, service: Service, name: str) -> None:
        self._service, self.name, self.began = service, name, time.perf_counter()
        self.rows = 0  # that it may have in the engine
        self.stream: TokenStream | None = None
        self.cause: ApiError | None = None  # why it is to end
        self.prompt_tokens = 0
        self.outcome: Outcome = "failed"
        self.status = 0  # of the answer; 0 where there was none

    def check(self) -> None:
        """ApiError where it has been ended."""
        if self.cause:
            raise self.cause

    def end(self, cause: ApiError) -> None:
        """It is to end, unless it has: its rows leave the engine, and who reads them hears of it."""
        if self.cause is None:
            self.cause = cause
            if self.stream:
                task = asyncio.ensure_future(self.stream.aclose())
                self._service.keep(task)

    def leave(self) -> None:
        """Its client has gone."""
        self.end(Gone())


class Service:
    """The engine and its requests. llm: an AsyncLLM, or what makes one and may take its time.

    name: of the model, as clients say it. log: takes one record an event. on_loaded: called with the engine once.
    """

    def __init__(
        self,
        llm: AsyncLLM | Callable[[], AsyncLLM],
        config: ServeConfig,
        name: str | None = None,
        *,
        log: Callable[[dict[str, Any]], object] = lambda record: None,
        on_loaded: Callable[[AsyncLLM], object] = lambda llm: None,
    ) -> None:
        self._source, self.config, self._name, self._log, self._on_loaded = llm, config, name, log, on_loaded
        self.llm: AsyncLLM | None = None
        self.phase: Phase = "loading"
        self.created, self.began, self.ready_s = int(time.time()), time.perf_counter(), 0.0
        self.cause: BaseException | None = None  # of its death
        self.books, self.tickets, self.rows = Books(), set[Ticket](), 0
        self.over: asyncio.Event = asyncio.Event()  # it is dead, or drained
        self._tasks: set[asyncio.Future[Any]] = set()

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.config.name or self._name or (self.llm.facts.model if self.llm else "model")

    @property
    def streams(self) -> int:
        """Rows that may get tokens now."""
        return min(self.rows, self.llm.facts.max_batch) if self.llm else 0

    def log(self, **record: Any) -> None:
        """One event, as one line of JSON."""
        self._log({"time": round(time.time(), 3), **record})

    def keep(self, task: asyncio.Future[Any]) -> None:
        """Hold a task until it is done: the event loop itself holds none."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def start(self) -> asyncio.Future[None]:
        """Load and warm up from now on. The future is done when it is ready, or dead."""
        starting = asyncio.ensure_future(self._start())
        self.keep(starting)
        return starting

    async def _start(self) -> None:
        try:
            self.llm = await _in_thread(self._source) if callable(self._source) else self._source
            self._on_loaded(self.llm)
            self.keep(asyncio.ensure_future(self._mourn(self.llm)))
            self.keep(asyncio.ensure_future(self._attend(self.llm)))
            if self.phase == "loading":
                self.phase = "warming up"
                await self.llm.warm_up()
            if self.phase == "warming up":
                self.phase, self.ready_s = "ready", time.perf_counter() - self.began
                self.log(event="ready", model=self.name, seconds=round(self.ready_s, 3))
        except Exception as error:
            self.die(error)

    async def _attend(self, llm: AsyncLLM) -> None:
        """Give an engine up that makes no step for `hang_timeout` seconds of serving, though it has rows.

        One of several is killed alone: its rows go on elsewhere.
        """
        seconds, engines, seen = self.config.hang_timeout, llm.engines, dict[Any, tuple[int | None, float]]()
        while llm.alive:
            await asyncio.sleep(min(1.0, seconds / 4))
            if len(llm.engines) < len(engines):
                self.log(event="engine lost", left=len(llm.engines))
            engines, now = llm.engines, time.perf_counter()
            for engine in engines:
                steps = engine.steps
                before, since = seen.get(engine, (None, now))
                if steps is None or steps != before or self.phase == "warming up":
                    seen[engine] = steps, now
                elif now - since > seconds and engine is not llm:
                    engine.process.kill()
                elif now - since > seconds:
                    self.die(RuntimeError(f"the engine has made no step for {seconds:g} seconds, and has rows"))
                    await _in_thread(llm.close)  # streams end with it; a process is killed if need be
                    return

    async def _mourn(self, llm: AsyncLLM) -> None:
        self.die(await asyncio.wrap_future(llm.died))

    def die(self, cause: BaseException) -> None:
        """Nothing can be served any more. Streams that are open end with this cause, by themselves."""
        if self.phase != "dead":
            self.phase, self.cause = "dead", cause
            self.log(event="dead", cause=f"{type(cause).__name__}: {cause}"[:500])
            self.keep(asyncio.ensure_future(self._bury()))

    async def _bury(self) -> None:
        await self._empty(5)  # they hear of it from the engine
        self.over.set()

    async def drain(self) -> None:
        """Take no more requests; end once the running ones have, or after `drain_timeout` seconds with an error."""
        if self.phase in ("draining", "dead"):
            return
        self.phase = "draining"
        self.log(event="draining", requests=len(self.tickets))
        if not await self._empty(self.config.drain_timeout):
            for ticket in list(self.tickets):
                ticket.end(unavailable("the server has stopped before this request was over", "stopped"))
            await self._empty(5)
        self.over.set()

    async def _empty(self, seconds: float) -> bool:
        """Wait until nobody is served, for so many seconds at most."""
        until = time.perf_counter() + seconds
        while self.tickets and time.perf_counter() < until:
            await asyncio.sleep(0.02)
        return not self.tickets

    def open(self, name: str) -> Ticket:
        """A request has come."""
        ticket = Ticket(self, name)
        self.books.submitted += 1
        self.tickets.add(ticket)
        return ticket

    def check_open(self, rows: int = 1) -> AsyncLLM:
        """The engine, where so many more rows may come in. ApiError, 503 or 429, where not."""
        if self.phase in ("loading", "warming up"):
            raise unavailable(f"the server is not ready yet: it is {self.phase}", "not_ready", after=5)
        if self.phase == "draining":
            raise unavailable("the server is stopping and takes no more requests", "stopping")
        if self.phase == "dead" or not self.llm:
            raise ApiError(500, "the engine has died", code="engine_dead", headers={"connection": "close"})
        if self.rows and self.rows + rows > (bound := self.llm.facts.max_batch + self.config.queue):
            what = f"{self.rows} completions run or wait, and {bound} may"
            raise ApiError(429, f"{what}: ask again later", code="queue_full", headers={"retry-after": "1"})
        return self.llm

    def admit(self, ticket: Ticket, rows: int) -> AsyncLLM:
        """Reserve the place of so many rows, all or none, until the ticket is closed. ApiError where there is none."""
        llm = self.check_open(rows)
        ticket.rows = rows
        self.rows += rows
        return llm

    def close(self, ticket: Ticket) -> None:
        """A request is over: count it, and write its line."""
        self.rows -= ticket.rows
        self.tickets.discard(ticket)
        self.books.ended[ticket.outcome] += 1
        record: dict[str, Any] = {"event": "request", "id": ticket.name, "model": self.name, "status": ticket.status}
        record |= {"outcome": ticket.outcome, "error": ticket.cause.code if ticket.cause else None}
        if ticket.stream:
            rows = ticket.stream.rows
            new = sum(len(row.token_ids) for row in rows)
            self.books.enter(rows)
            self.books.prompt_tokens += ticket.prompt_tokens
            self.books.new_tokens += new
            record |= {"prompt_tokens": ticket.prompt_tokens, "new_tokens": new, "rows": len(rows)}
            record["finish"] = [row.finish_reason for row in rows]
            if waits := [row.began - row.asked for row in rows if row.began]:
                record["queue_s"] = round(max(waits), 6)
            if times := [row.times[0] for row in rows if row.times]:
                record["ttft_s"] = round(min(times) - ticket.began, 6)
        self.log(**record, total_s=round(time.perf_counter() - ticket.began, 6))


def _in_thread(make: Callable[[], Any]) -> asyncio.Future[Any]:
    """Call it in a thread that holds up no exit, unlike those of an executor."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        try:
            made, error = make(), None
        except BaseException as caught:
            made, error = None, caught

        def tell() -> None:
            if not future.done():
                future.set_exception(error) if error else future.set_result(made)

        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    threading.Thread(target=run, name="nanoinfer-load", daemon=True).start()
    return future
