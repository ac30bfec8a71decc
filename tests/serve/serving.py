"""Servers for tests, on free ports of this machine, in a thread or as the command; what their clients send and read."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from nanoinfer import LLM, AsyncLLM
from nanoinfer.model.config import PRESETS
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.serve.app import App
from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.run import Server, bind, url_of
from nanoinfer.serve.service import Service

PATH = "/v1/completions"
LONG = {"max_tokens": 200, "ignore_eos": True}


@cache
def model() -> GPT2:
    """GPT-2's vocabulary, 256 positions, and weights on which everything before a token shows."""
    return random_model(PRESETS["tiny"], seed=1, std=0.25)


def engine(**settings: Any) -> AsyncLLM:
    return AsyncLLM(model(), engine="paged", threads=1, **{"max_batch": 4, **settings})


@cache
def library() -> LLM:
    """Runs a prompt apart from the server."""
    return LLM(model(), engine="dense", threads=1, max_batch=4)


def until(true: Callable[[], Any], seconds: float = 60) -> None:
    """Look again and again, until it is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.005)


class Hold:
    """Stops an engine ahead of its next step, until it is let go. steps: that were let go."""

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
        self.steps = 0
        self._go.clear()


@dataclass
class Served:
    """A running server, and one client."""

    service: Service
    server: Server
    url: str
    records: list[dict[str, Any]]  # its log
    http: httpx.Client
    loop: asyncio.AbstractEventLoop

    def post(self, prompt: Any = "a", headers: Any = None, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "prompt": prompt, **fields}
        return self.http.post(PATH, content=json.dumps(body), headers=headers)

    def events(self, prompt: Any = "a", **fields: Any) -> list[Any]:
        """The data of all events, the end mark as it is."""
        answer = self.post(prompt, stream=True, **fields)
        assert answer.status_code == 200, answer.text
        return parsed(answer.text)

    def connect(self, receives: int | None = None) -> socket.socket:
        """A plain connection. receives: bytes that the kernel may hold for this client."""
        return connect(self.url, receives)

    def open(self, *, receives: int | None = None, **fields: Any) -> socket.socket:
        """A connection of its own on which a request was sent."""
        connection = self.connect(receives)
        connection.sendall(request({"model": "tiny", "prompt": "a", **fields}))
        return connection

    def numbers(self) -> dict[str, float]:
        """All samples of /metrics, by name and labels."""
        families = text_string_to_metric_families(self.http.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples]
        names = [":".join([one.name.removeprefix("nanoinfer_"), *one.labels.values()]) for one in samples]
        return dict(zip(names, [one.value for one in samples], strict=True))

    @property
    def rows(self) -> float:
        """Rows that run or wait."""
        found = self.numbers()
        return found["rows_running"] + found["rows_waiting"]

    @property
    def ended(self) -> dict[str, float]:
        """How many requests have ended, by outcome; those that have not happened are left out."""
        found = {name.partition(":")[2]: value for name, value in self.numbers().items() if "requests_total:" in name}
        return {outcome: count for outcome, count in found.items() if count}

    def balanced(self) -> bool:
        """Whether the books balance, with no request and no row inside."""
        found = self.numbers()
        inside = [found[name] for name in ("requests_live", "rows_running", "rows_waiting", "blocks_used")]
        return not any(inside) and found["requests_submitted_total"] == sum(self.ended.values())

    def idle(self) -> None:
        """Wait until no request is inside, and the engine holds nothing."""
        until(self.balanced)


def connect(url: str, receives: int | None = None) -> socket.socket:
    """A plain connection. receives: bytes that the kernel may hold for this client."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    connection = socket.socket()
    connection.settimeout(60)
    if receives:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    connection.connect((host, int(port)))
    return connection


def parsed(text: str) -> list[Any]:
    """Events as JSON; the end mark as it is."""
    assert text.endswith("\n\n")
    lines = [event.removeprefix("data: ") for event in text[:-2].split("\n\n")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def joined(events: list[Any], index: int = 0) -> str:
    """The text that events of a stream, its end mark included, give to one choice."""
    *pieces, end = events
    assert end == "[DONE]"
    choices = [choice for event in pieces for choice in event["choices"]]
    return "".join(choice["text"] for choice in choices if choice["index"] == index)


def request(fields: dict[str, Any], headers: str = "") -> bytes:
    """A request for completions, byte for byte."""
    body = json.dumps(fields).encode()
    return f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def rest(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def vanish(connection: socket.socket) -> None:
    """Close without a word: the other side gets a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@contextmanager
def serving(llm: AsyncLLM | Callable[[], AsyncLLM], *, ready: bool = True, **settings: Any) -> Iterator[Served]:
    """Serve it in a thread, and stop in the end."""
    config, records = ServeConfig(**{"port": 0, "name": "tiny", **settings}), list[dict[str, Any]]()
    service = Service(llm, config, log=records.append)
    listening = bind(config)
    server, url = Server(App(service)), url_of(listening)
    loop = (server.config.get_loop_factory() or asyncio.new_event_loop)()

    def run() -> None:
        loop.run_until_complete(server.serve(sockets=[listening]))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = Thread(target=run, daemon=True)
    thread.start()
    with httpx.Client(base_url=url, timeout=120) as http:
        until(lambda: service.phase not in ("loading", "warming up") if ready else server.started)
        yield Served(service, server, url, records, http, loop)
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


@contextmanager
def serving_by_hypercorn(llm: AsyncLLM, **settings: Any) -> Iterator[str]:
    """The same application under another server, whose address this is, in a thread."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config, loop, told = Config(), asyncio.new_event_loop(), asyncio.Event()
    config.bind, config.errorlog = [address], None
    app: Any = App(llm, ServeConfig(name="tiny", **settings))
    thread = Thread(target=loop.run_until_complete, args=(serve(app, config, shutdown_trigger=told.wait),), daemon=True)
    thread.start()
    until(lambda: healthy(f"http://{address}"))
    yield f"http://{address}"
    loop.call_soon_threadsafe(told.set)
    thread.join(60)
    assert not thread.is_alive()


def healthy(url: str) -> bool:
    """Whether it answers that it is ready."""
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.ConnectError:
        return False


@contextmanager
def proxied(url: str, folder: Path, **values: str) -> Iterator[str]:
    """nginx with the book's configuration before a server: its address. values: directives to be set otherwise."""
    page = (Path(__file__).parents[2] / "chapters" / "SERVING.md").read_text(encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    text = page.partition("```nginx\n")[2].partition("```")[0].replace("127.0.0.1:8000", url.removeprefix("http://"))
    for name, value in {"listen": address, **values}.items():
        text, count = re.subn(rf"\b{name} [^;]*;", f"{name} {value};", text)
        assert count, name
    (folder / "nginx.conf").write_text(text)
    paths = f"daemon off; pid {folder}/pid; error_log {folder}/errors;"
    with subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", paths]) as process:
        until(lambda: process.poll() is not None or healthy(f"http://{address}"))
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


@dataclass
class Command:
    """`nanoinfer serve` in a process of its own."""

    process: subprocess.Popen[str]
    url: str

    def ready(self) -> None:
        until(lambda: httpx.get(f"{self.url}/health").status_code == 200, 120)


@contextmanager
def command(log: Path, *options: str) -> Iterator[Command]:
    """Serve from now on, with the tiny model unless the options name another; it listens."""
    arguments = [sys.executable, "-m", "nanoinfer", "serve", "--port", "0", "--device", "cpu", "--threads", "1"]
    arguments += ["--engine", "paged", *([] if "--model" in options else ["--model", "random:tiny"]), *options]
    with log.open("w") as out, subprocess.Popen(arguments, stdout=out, stderr=subprocess.STDOUT, text=True) as process:
        try:
            until(lambda: '"listening"' in log.read_text() or process.poll() is not None, 120)
            lines = logged(log)
            assert lines, log.read_text()
            yield Command(process, lines[0]["url"])
        finally:
            if process.poll() is None:
                process.kill()


def logged(log: Path) -> list[dict[str, Any]]:
    """The records of a command's log."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def children(pid: int) -> list[int]:
    """The processes that this one has started, on Linux."""
    found = [task.read_text().split() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    return sorted(int(child) for task in found for child in task)


def gone(pid: int) -> bool:
    """Whether a process has ended, an orphan's remains included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.is_file() and stat.read_text().rpartition(")")[2].split()[0] == "Z"
