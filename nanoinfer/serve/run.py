"""The process: listen, load, serve, and end as it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nanoinfer.async_llm import AsyncLLM
from nanoinfer.serve.app import App
from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.service import Service

FLUSH = 5  # seconds for answers that are under way when all requests are over
SENDING = 1 << 17  # bytes that the kernel may hold for one client; by itself it takes up to some megabytes
OTHERS = 256  # descriptors for what is no connection (pipes, libraries, files)
WAITING = 2048  # connections that the kernel may hold until they are accepted
IDLE = 75  # seconds that a connection is kept for the next request
UPGRADE = re.compile(rb"(?<=\nupgrade):", re.I)


class Protocol(HttpToolsProtocol):
    """uvicorn's, deaf to `Upgrade`, which every Java client sends: httptools would drop such a request's body.

    The header is renamed on its way in. No JSON has a line that begins so, which leaves bodies as they are.
    """

    _before = b""  # the end of what has come, for a name that comes in two parts

    def data_received(self, data: bytes) -> None:
        data, begun = self._before + data, len(self._before)
        self._before = data[-len(b"\nupgrade") :]
        super().data_received(UPGRADE.sub(b"d:", data)[begun:])


class Server(uvicorn.Server):
    """uvicorn's server, with its own bounds and no news of its own.

    SIGTERM and Ctrl-C let the service drain, and a second Ctrl-C ends the process at once.
    """

    def __init__(self, app: App) -> None:
        self._service, self._told = app.service, False
        settings = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            log_level="critical",  # garbage from a client is no news
            server_header=False,
            proxy_headers=False,
            backlog=WAITING,
            limit_concurrency=app.service.config.connections + 1,  # uvicorn refuses the one that reaches it
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=FLUSH,
        )
        super().__init__(settings)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._told and sig == signal.SIGINT:
            os._exit(130)
        self._told = True
        asyncio.get_running_loop().call_soon_threadsafe(self._service.go, self._service.drain())


def bind(config: ServeConfig) -> socket.socket:
    """A socket that listens; its connections inherit its options. OSError where it cannot."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listening = socket.create_server((config.host, config.port), family=family, backlog=WAITING)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENDING)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it on sockets of its own alone
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux cuts who takes nothing, even when all has been written
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * config.stall_timeout))
    return listening


def allow_descriptors(connections: int) -> int | None:
    """Let this process open as many descriptors as the system allows.

    Returns the most connections that are possible if so many are too many, and None if they are not.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(0, hard - OTHERS) if connections + OTHERS > hard != resource.RLIM_INFINITY else None


def url_of(listening: socket.socket) -> str:
    """The address of a socket, as a client writes it."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def write_log(record: dict[str, Any]) -> None:
    """Write a record on standard output. Where nobody reads it any more, it is dropped."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()


def serve(load: Callable[[], AsyncLLM], config: ServeConfig, listening: socket.socket) -> BaseException | None:
    """Serve until a signal comes, and return None; or until the engine dies, and return its cause.

    load: makes the engine, in a thread, and that may still run at the end: leave by `os._exit`.
    """
    service = Service(load, config, log=write_log)
    server = Server(App(service))
    loop = (server.config.get_loop_factory() or asyncio.new_event_loop)()

    async def begin_and_end() -> None:
        service.log(event="listening", url=url_of(listening), model=service.name, pid=os.getpid())
        await service.over.wait()
        server.should_exit = True

    async def main() -> None:
        service.go(begin_and_end())  # its turn comes when the server already hears of signals
        await server.serve(sockets=[listening])

    loop.run_until_complete(main())
    return service.cause
