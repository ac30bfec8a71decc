"""Several client processes for one run: they share its requests out, and all start at the same moment.

The clock of an event loop is the machine's monotonic one, so a moment that one process names is the same in all.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

from nanobench.load.drive import CANCELLED, Answer, Ask, drive
from nanobench.load.http_client import Endpoint, Raw, Reader, exchange

AHEAD = 0.3  # seconds from when all clients are ready to the start
PATIENCE = 120.0  # seconds that a client may take to start, or to read what came


@dataclass(frozen=True)
class Work:
    """What one client sends; requests: as bytes, in the order of asks."""

    endpoint: Endpoint
    asks: tuple[Ask, ...]
    requests: tuple[bytes, ...]
    concurrency: int | None
    timeout: float


@dataclass(frozen=True)
class Done:
    """What one client brings back. cpu_share: of one core, over the run; interrupted: before all was over."""

    answers: tuple[Answer, ...]
    cpu_share: float
    interrupted: bool = False


async def serve_work(work: Work, start: float, stop: asyncio.Event) -> Done:
    """Send the requests and read the answers. start: by the event loop's clock."""
    loop, endpoint = asyncio.get_running_loop(), work.endpoint
    bytes_of = dict(zip((ask.number for ask in work.asks), work.requests, strict=True))
    address = (await loop.getaddrinfo(endpoint.host, endpoint.port))[0][4][0]

    async def send(ask: Ask) -> Raw:
        return await exchange(endpoint, str(address), bytes_of[ask.number], work.timeout)

    cpu = time.process_time()
    gc.freeze()
    gc.disable()  # what comes is kept until the end: looking for garbage in it would only cost time
    sent = await drive(work.asks, send, start, work.concurrency, stop)
    cpu_share = (time.process_time() - cpu) / max(loop.time() - start, 1e-9)
    gc.enable()
    replies = [CANCELLED if each.result is None else Reader().reply(each.result) for each in sent]
    answers = tuple(each.answer(reply, start) for each, reply in zip(sent, replies, strict=True))
    return Done(answers, cpu_share, stop.is_set())


def client(pipe: Connection, work: Work) -> None:
    """A process: says that it is ready, receives the start, sends what it did.

    A message after the start, or the end of the process at the other end, interrupts it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it says when to stop
    _many_sockets()
    pipe.send("ready")
    start: float = pipe.recv()

    async def main() -> Done:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def listen() -> None:
            with contextlib.suppress(EOFError, OSError):
                pipe.recv()
            with contextlib.suppress(RuntimeError):  # it is over, and so is the loop
                loop.call_soon_threadsafe(stop.set)

        threading.Thread(target=listen, daemon=True).start()
        return await serve_work(work, start, stop)

    with contextlib.suppress(BrokenPipeError):
        pipe.send(asyncio.run(main()))


def run_clients(works: Sequence[Work]) -> list[Done]:
    """Run all clients; Ctrl-C interrupts them, and what they have done comes back. ChildProcessError if one dies."""
    spawn = get_context("spawn")
    pipes, processes = [], []
    try:
        for work in works:
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=client, args=(theirs, work), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _receive(pipe, PATIENCE)
        start = time.monotonic() + AHEAD
        for pipe in pipes:
            pipe.send(start)
        try:
            return [_receive(pipe) for pipe in pipes]
        except KeyboardInterrupt:
            for pipe in pipes:
                pipe.send("stop")
            return [_receive(pipe, PATIENCE) for pipe in pipes]
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(5)
            process.kill()


def _receive(pipe: Connection, patience: float | None = None) -> Done:
    try:
        if pipe.poll(patience):
            received: Done = pipe.recv()
            return received
    except (EOFError, OSError):
        pass
    raise ChildProcessError("a client process of the load generator died, or did not answer")


def default_clients() -> int:
    """A quarter of the cores, from 1 to 8: the rest is the server's."""
    return max(1, min(8, (os.cpu_count() or 1) // 4))


def _many_sockets() -> None:
    """As many open sockets as the system lets this process have: often 1,024 unless asked."""
    if sys.platform != "win32":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
