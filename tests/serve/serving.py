"""A server on a free port of this machine, in a thread of the test's process: real sockets, an engine one can hold."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Event, Thread
from typing import Any

import httpx

from nanoinfer import LLM, AsyncLLM
from nanoinfer.model.config import PRESETS
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.serve.app import make_app
from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.run import Server, bind, settings_of, url_of
from nanoinfer.serve.service import Service

PATH = "/v1/completions"


@cache
def model() -> GPT2:
    """GPT-2's vocabulary, 256 positions, and weights that say something of everything before."""
    return random_model(PRESETS["tiny"], seed=1, std=0.25)


def engine(**settings: Any) -> AsyncLLM:
    return AsyncLLM(model(), engine="paged", threads=1, **{"max_batch": 4, **settings})


@cache
def library() -> LLM:
    """Where a prompt runs apart from the server."""
    return LLM(model(), engine="dense", threads=1, max_batch=4)


def until(true: Callable[[], Any], seconds: float = 60) -> None:
    """Look again and again, until it is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.005)


class Hold:
    """Stops an engine ahead of its next step, until it is let go."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._go, self.steps = Event(), 0
        core, step = llm.llm.core, llm.llm.core.step

        def held() -> Any:
            assert self._go.wait(timeout=60)
            self.steps += 1
            return step()

        core.step = held  # type: ignore[method-assign]

    def off(self) -> None:
        self._go.set()

    def on(self) -> None:
        self._go.clear()


@dataclass
class Served:
    """A server that runs, and one client."""

    service: Service
    server: Server
    url: str
    records: list[dict[str, Any]]  # its log
    http: httpx.Client

    def post(self, prompt: Any = "a", headers: Any = None, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "prompt": prompt, **fields}
        return self.http.post(PATH, content=json.dumps(body), headers=headers)

    def events(self, prompt: Any = "a", **fields: Any) -> list[Any]:
        """The data of all events, the end mark as it is."""
        answer = self.post(prompt, stream=True, **fields)
        assert answer.status_code == 200, answer.text
        return parsed(answer.text)

    def open(self, **fields: Any) -> socket.socket:
        """A connection of one's own on which a request was sent."""
        connection = self.connect()
        send(connection, {"model": "tiny", "prompt": "a", **fields})
        return connection

    def connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=60)

    def balanced(self) -> bool:
        """Whether the books balance, with nobody inside."""
        service, books = self.service, self.service.books
        return books.submitted == sum(books.ended.values()) and not service.tickets and not service.rows

    def idle(self) -> None:
        """Wait until nobody is inside, and the engine holds nothing."""
        until(self.balanced)
        llm = self.service.llm
        assert llm
        until(lambda: not llm.llm.core.busy)
        assert llm.gauges[:3] == (0, 0, 0)


def parsed(text: str) -> list[Any]:
    """Events as JSON; the end mark as it is."""
    assert text.endswith("\n\n")
    lines = [event.removeprefix("data: ") for event in text[:-2].split("\n\n")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def send(connection: socket.socket, fields: dict[str, Any]) -> None:
    body = json.dumps(fields).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)


def rest(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@contextmanager
def serving(llm: AsyncLLM | Callable[[], AsyncLLM], *, ready: bool = True, **settings: Any) -> Iterator[Served]:
    """Serve it, and stop in the end."""
    config, records = ServeConfig(**{"port": 0, "name": "tiny", **settings}), list[dict[str, Any]]()
    service = Service(llm, config, log=records.append)
    listening = bind(config.host, config.port)
    uvicorn_settings = settings_of(make_app(service), config)
    server = Server(uvicorn_settings)
    url = url_of(listening)

    def run() -> None:
        loop = (uvicorn_settings.get_loop_factory() or asyncio.new_event_loop)()
        loop.run_until_complete(server.serve(sockets=[listening]))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = Thread(target=run, daemon=True)
    thread.start()
    with httpx.Client(base_url=url, timeout=120) as http:
        until(lambda: service.phase not in ("loading", "warming up") if ready else server.started)
        yield Served(service, server, url, records, http)
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()
