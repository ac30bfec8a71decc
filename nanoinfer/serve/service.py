"""What the server knows besides HTTP: whether it is ready, who is being served, and who may come in.

The engine is loaded in a thread of its own, so that `/live` answers meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal, get_args

from nanoinfer.async_llm import AsyncLLM, TokenStream
from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.errors import ApiError, bad, unavailable
from nanoinfer.worker import Worker

Phase = Literal["loading", "warming up", "ready", "draining", "dead"]
Outcome = Literal["finished", "cancelled", "refused", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FAREWELL = 5.0  # seconds that requests have to hear of the end


class Ticket:
    """One request on its way through the server, in the task that serves it."""

    def __init__(self, name: str) -> None:
        self.name, self.began = name, time.perf_counter()
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self.rows = 0  # that it may have in the engine
        self.stream: TokenStream | None = None
        self.cause: ApiError | None = None  # why it ends without its answer
        self.outcome: Outcome = "finished"
        self.status = 0  # of the answer; 0 where there was none
        self.answered = False  # its last part is on its way, and then a server may say that the client has gone

    def end(self, cause: ApiError) -> None:
        """End it from outside: its task is cancelled, so its rows leave the engine, and its client is told why."""
        if self.task and not (self.cause or self.answered):
            self.cause = cause
            self.task.cancel()

    @property
    def sequences(self) -> tuple[Any, ...]:
        """Its rows in the engine."""
        return self.stream.rows if self.stream else ()

    @property
    def usage(self) -> dict[str, int]:
        """How many tokens, as its client is told: each prompt once, however many samples it has."""
        prompt = sum(len(row.request.prompt_token_ids) for row in self.sequences if row.request.sample == 0)
        new = sum(len(row.token_ids) for row in self.sequences)
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

    def record(self) -> dict[str, Any]:
        """Its line in the log."""
        found: dict[str, Any] = {"id": self.name, "status": self.status, "outcome": self.outcome}
        found["error"] = self.cause.code if self.cause else None
        if rows := self.sequences:
            found["prompt_tokens"], found["new_tokens"], _ = self.usage.values()
            found["rows"] = len(rows)
            found["finish"] = [row.finish_reason for row in rows]
            if waits := [row.began - row.asked for row in rows if row.began]:
                found["queue_s"] = round(max(waits), 6)
            if times := [row.times[0] for row in rows if row.times]:
                found["ttft_s"] = round(min(times) - self.began, 6)
        return found | {"total_s": round(time.perf_counter() - self.began, 6)}


class Service:
    """The engine and its requests. llm: an AsyncLLM, or what makes one and may take its time.

    log: takes one record an event. on_close: called with each request that is over.
    """

    def __init__(
        self,
        llm: AsyncLLM | Callable[[], AsyncLLM],
        config: ServeConfig,
        *,
        log: Callable[[dict[str, Any]], object] = lambda record: None,
    ) -> None:
        self._source, self.config, self._log = llm, config, log
        self.on_close: Callable[[Ticket], object] = lambda ticket: None
        self.llm: AsyncLLM | None = None
        self.phase: Phase = "loading"
        self.created, self._began, self.ready_s = int(time.time()), time.perf_counter(), 0.0
        self.cause: BaseException | None = None  # of its death
        self.submitted, self.tickets, self.rows = 0, set[Ticket](), 0
        self.over = asyncio.Event()  # it is dead, or drained
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.config.name or (self.llm.facts.model if self.llm else "model")

    @property
    def streams(self) -> int:
        """Rows that may get tokens now."""
        return min(self.rows, self.llm.facts.max_batch) if self.llm else 0

    def log(self, **record: Any) -> None:
        """Write one event, as one line of JSON."""
        self._log({"time": round(time.time(), 3), **record})

    def go(self, work: Coroutine[Any, Any, object]) -> None:
        """Run it as a task, and hold that until it is done: the event loop itself holds none."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def start(self) -> None:
        """Load and warm up."""
        try:
            self.llm = llm = await _in_thread(self._source) if callable(self._source) else self._source
            asyncio.wrap_future(llm.died).add_done_callback(lambda died: self._die(died.result()))
            self.go(self._give_up_if_it_hangs(llm))
            if self.phase == "loading":
                self.phase = "warming up"
                await llm.warm_up()
            if self.phase == "warming up":
                self.phase, self.ready_s = "ready", time.perf_counter() - self._began
                self.log(event="ready", model=self.name, seconds=round(self.ready_s, 3))
        except Exception as error:
            self._die(error)

    async def _give_up_if_it_hangs(self, llm: AsyncLLM) -> None:
        """End an engine that makes no step for `hang_timeout` seconds of serving, though it has rows.

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
                    self._die(RuntimeError(f"the engine has made no step for {seconds:g} seconds, and has rows"))
                    await _in_thread(llm.close)  # streams end with it; a process is killed if need be
                    return

    def _die(self, cause: BaseException) -> None:
        """Nothing can be served any more. Open streams hear of it from the engine."""
        if self.phase != "dead":
            self.phase, self.cause = "dead", cause
            self.log(event="dead", cause=f"{type(cause).__name__}: {cause}"[:500])
            self.go(self._end(FAREWELL))

    async def drain(self) -> None:
        """Take no more requests; end once the running ones have, or after `drain_timeout` seconds with an error."""
        if self.phase not in ("draining", "dead"):
            self.phase = "draining"
            self.log(event="draining", requests=len(self.tickets))
            await self._end(self.config.drain_timeout)

    async def stop(self) -> None:
        """Drain, and close an engine that was made here."""
        await self.drain()
        if callable(self._source) and self.llm and self.ready_s and self.cause is None:
            await asyncio.to_thread(self.llm.close)

    async def _end(self, seconds: float) -> None:
        """Be over once all requests are, which have so many seconds for it, and then hear that they must end."""
        for patience in (seconds, FAREWELL):
            if tasks := [ticket.task for ticket in self.tickets if ticket.task]:
                await asyncio.wait(tasks, timeout=patience)
            for ticket in self.tickets:
                ticket.end(unavailable("the server has stopped before this request was over", "stopped"))
        self.over.set()

    def open(self, ticket: Ticket) -> None:
        """Note a request that has come."""
        self.submitted += 1
        self.tickets.add(ticket)

    def check_open(self, rows: int = 1) -> AsyncLLM:
        """Return the engine, where so many more rows may come in. ApiError where not."""
        if self.phase in ("loading", "warming up"):
            raise unavailable(f"the server is not ready yet: it is {self.phase}", "not_ready", after=5)
        if self.phase == "draining":
            raise unavailable("the server is stopping and takes no more requests", "stopping")
        if self.phase == "dead" or not self.llm:
            raise ApiError(500, "the engine has died", code="engine_dead", connection="close")
        most = self.llm.facts.max_batch + self.config.queue
        if rows > most:
            raise bad("n", f"{rows} completions are more than the {most} that may run or wait")
        if self.rows + rows > most:
            what = f"{self.rows} completions run or wait, and {most} may: ask again later"
            raise ApiError(429, what, code="queue_full", retry_after="1")
        return self.llm

    def admit(self, ticket: Ticket, rows: int) -> None:
        """Reserve the places of so many rows until the ticket is closed, all or none. ApiError where there are none."""
        self.check_open(rows)
        ticket.rows = rows
        self.rows += rows

    def close(self, ticket: Ticket) -> None:
        """A request is over: count it, and write its line."""
        self.rows -= ticket.rows
        self.tickets.discard(ticket)
        self.on_close(ticket)
        self.log(event="request", model=self.name, **ticket.record())


async def _in_thread(make: Callable[[], Any]) -> Any:
    """Call it in a thread that holds up no exit, unlike those of an executor."""
    worker = Worker("nanoinfer-load")
    worker.stop.atexit = False
    return await asyncio.wrap_future(worker.submit(make))
