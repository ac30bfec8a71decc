"""What requests are sent to: an engine in this process or in one of its own, this server, or any other by its URL."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from nanobench.load.clients import Done, Work, run_clients
from nanobench.load.drive import CANCELLED, Ask, Reply, drive
from nanobench.load.http_client import Endpoint
from nanobench.micro.queue_load import greedy


@dataclass(frozen=True)
class Server:
    """An OpenAI-shaped server. extra: fields that each body has besides."""

    name: str
    endpoint: Endpoint
    model: str
    clients: int
    timeout: float
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, ask: Ask) -> dict[str, Any]:
        """What is asked for: greedy, streamed, with the number of tokens at the end."""
        return {
            "model": self.model, "prompt": ask.prompt, "max_tokens": ask.max_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, **self.extra,
        }  # fmt: skip

    def run(self, asks: Sequence[Ask], concurrency: int | None) -> list[Done]:
        """Send them as the table says, and wait for all answers, or for Ctrl-C."""
        works = []
        for client in range(self.clients):
            share = asks[client :: self.clients]
            at_once = concurrency and concurrency // self.clients + (client < concurrency % self.clients)
            if share and at_once != 0:
                requests = tuple(self.endpoint.request(self.body(ask)) for ask in share)
                light = tuple(replace(ask, prompt=()) for ask in share)  # it is in the bytes
                works.append(Work(self.endpoint, light, requests, at_once, self.timeout))
        return run_clients(works)


class EngineTarget:
    """An `AsyncLLM`, or one with a process of its own: token ids in and out, no HTTP and no text.

    A token's time is when it reached the engine's host. The clients' share of CPU is that of the thread that submits.
    """

    def __init__(self, name: str, llm: Any) -> None:
        self.name, self._llm = name, llm
        self._loop = asyncio.new_event_loop()

    def run(self, asks: Sequence[Ask], concurrency: int | None) -> list[Done]:
        return [self._loop.run_until_complete(self._run(asks, concurrency))]

    async def _run(self, asks: Sequence[Ask], concurrency: int | None) -> Done:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        with contextlib.suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(signal.SIGINT, stop.set)
        try:
            cpu, start = time.thread_time(), loop.time() + 0.05
            sent = await drive(asks, self._send, start, concurrency, stop)
            share = (time.thread_time() - cpu) / (loop.time() - start)
        finally:
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(signal.SIGINT)
        return Done(tuple(each.answer(each.result or CANCELLED, start) for each in sent), share, stop.is_set())

    async def _send(self, ask: Ask) -> Reply:
        asked = asyncio.get_running_loop().time()
        try:
            [done] = await self._llm.generate(list(ask.prompt), greedy(ask.max_tokens))
        except ValueError as error:
            return Reply("refused", str(error)[:60])
        except RuntimeError as error:
            return Reply("failed", str(error)[:60])
        times = [asked + done.metrics.ttft_s]
        for gap in done.metrics.itl_s:
            times.append(times[-1] + gap)
        return Reply("ok", "", len(done.token_ids), tuple(times), times[-1])

    @contextmanager
    def opened(self) -> Iterator[EngineTarget]:
        """Warmed up; closed afterwards."""
        try:
            self._loop.run_until_complete(self._llm.warm_up())
            yield self
        finally:
            self._llm.close()
            self._loop.close()


Target = Server | EngineTarget
