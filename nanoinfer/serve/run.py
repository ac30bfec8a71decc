"""The process: listen, load, serve, and end as it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from nanoinfer.async_llm import AsyncLLM
from nanoinfer.serve.app import make_app
from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.connection import SPARE, Connection
from nanoinfer.serve.service import Service

FLUSH = 5  # seconds for answers that are under way when all requests are over
SENDING = 1 << 17  # bytes that the kernel may hold for one client; by itself it takes up to some megabytes
OTHERS = 256  # descriptors for what is no connection (pipes, libraries, files) or is not counted yet
WAITING = 2048  # connections that the kernel may hold until they are accepted
ACCEPTS = 32  # of these in one turn of the event loop; it counts and closes them only some turns later
IDLE = 75  # seconds that a connection may be kept without a request


class Stopper:
    """SIGTERM and Ctrl-C, from early on: before there is a server they end the process, with exit code 0."""

    def __init__(self) -> None:
        self._told = False
        self._drain: Callable[[], object] = lambda: os._exit(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def then(self, drain: Callable[[], object]) -> None:
        """From now on, call this."""
        self._drain = drain
        if self._told:
            drain()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._told and number == signal.SIGINT:
            os._exit(130)
        self._told = True
        self._drain()


class Server(uvicorn.Server):
    """uvicorn's server, that leaves signals to a `Stopper`, and accepts few connections at a time."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(WAITING)  # asyncio takes one number for how many wait and how many are accepted in a turn


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. OSError where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=WAITING)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENDING)  # its connections inherit this
    return listening


def allow_descriptors(connections: int) -> int | None:
    """Let this process open as many descriptors as so many connections need.

    Returns the most connections that are possible if these are too many, and None if they are not.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + SPARE + OTHERS
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return None
    if hard != resource.RLIM_INFINITY and needed > hard:
        return max(0, hard - SPARE - OTHERS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return None


def url_of(listening: socket.socket) -> str:
    """The address of a socket, as a client writes it."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def write_log(record: dict[str, Any]) -> None:
    """A record on standard output. Where nobody reads it any more, it is dropped."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()


def serve(
    load: Callable[[], AsyncLLM],
    config: ServeConfig,
    name: str,
    listening: socket.socket,
    *,
    stopper: Stopper,
    on_loaded: Callable[[Any, AsyncLLM], object] = lambda app, llm: None,
) -> BaseException | None:
    """Serve until a signal comes, and return None; or until the engine dies, and return its cause.

    load: makes the engine, in a thread, and that may still run at the end: leave by `os._exit`. on_loaded: called with
    application and engine.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # garbage from a client is no news

    service = Service(load, config, name, log=write_log, on_loaded=lambda llm: on_loaded(app, llm))
    app = make_app(service)
    settings = settings_of(app, config)
    loop = (settings.get_loop_factory() or asyncio.new_event_loop)()
    server = Server(settings)

    def drain() -> None:
        loop.call_soon_threadsafe(lambda: service.keep(loop.create_task(service.drain())))

    async def end() -> None:
        await service.over.wait()
        server.should_exit = True

    async def main() -> None:
        stopper.then(drain)
        service.keep(loop.create_task(end()))
        service.log(event="listening", url=url_of(listening), model=service.name, pid=os.getpid())
        await server.serve(sockets=[listening])
        if service.llm is not None and service.ready_s and service.cause is None:
            await asyncio.to_thread(service.llm.close)

    loop.run_until_complete(main())
    return service.cause


def settings_of(app: Any, config: ServeConfig) -> uvicorn.Config:
    """How uvicorn is to serve the application."""
    return uvicorn.Config(
        app,
        http=partial(Connection, bounds=config),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=ACCEPTS,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=FLUSH,
    )
