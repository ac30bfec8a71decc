"""Bounds on a connection that uvicorn has not: how many, how long a request may take to come, who must read.

An offer to change the protocol (`Upgrade: h2c`, which every Java client makes) is not taken up, and the parser, which
would drop such a request's body, does not see it.

A client that sends or takes nothing costs a socket and at most some hundred kilobytes, for a bounded time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from nanoinfer.serve.completions import LEFT, OVER
from nanoinfer.serve.config import ServeConfig

SPARE = 64  # connections beyond the bound, for /live, /health and /metrics; idle ones make way
UPGRADE = re.compile(rb"^upgrade(?=[ \t]*:)", re.I | re.M)
HEAD = 1 << 16  # bytes of a request's line and headers
GRACE = 2.0  # seconds beyond `body_timeout`: the endpoint's own answer comes first


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with these bounds."""

    def __init__(self, *args: Any, bounds: ServeConfig, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds, self._received, self._in_head = bounds, 0, True
        self._line = b""  # of a head, as far as it has come
        self._since = self.loop.time()  # when it last began to wait for a request
        self._left: set[Callable[[], object]] = set()  # to be called when the client goes
        self._arrival: asyncio.TimerHandle | None = None  # until the request has come
        self._taking: asyncio.TimerHandle | None = None  # until the client has taken what is ready

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Joined(transport, self.loop))  # type: ignore[arg-type]
        if len(self.connections) > self._bounds.connections:
            app = self.app

            async def over(scope: Any, receive: Any, send: Any) -> None:
                scope[OVER] = len(self.connections) > self._bounds.connections  # others may have left meanwhile
                await app(scope, receive, send)

            self.app = over  # type: ignore[assignment]
        if len(self.connections) > self._bounds.connections + SPARE:
            others = [each for each in self.connections if isinstance(each, Connection) and each is not self]
            idle = (each for each in others if each.idle)
            min(idle, key=lambda each: each._since, default=self).transport.abort()
        if not transport.is_closing():
            self._expect()

    @property
    def idle(self) -> bool:
        """Whether it is open, nothing of a request has come, and no answer is under way."""
        waits = not self._received and not self._line and (self.cycle is None or self.cycle.response_complete)
        return waits and not self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._arrival, self._taking):
            if timer:
                timer.cancel()
        super().connection_lost(exc)
        for left in tuple(self._left):
            left()

    def data_received(self, data: bytes) -> None:
        first, self._received = not self._received, self._received + len(data)
        data, self._line = self._line + data, b""
        if self._in_head:
            end = re.search(rb"\n\r?\n", data if first else b"\n" + data)
            if end is None:  # the last line may go on
                cut = data.rfind(b"\n") + 1
                data, self._line = data[:cut], data[cut:]
            at = len(data) if end is None else end.start()
            if self._received - (len(data) - at) > HEAD:
                return self.transport.abort()
            data = UPGRADE.sub(b"x-not-taken", data[:at]) + data[at:]
        if data:
            super().data_received(data)
        if self._received > (HEAD if self._in_head else HEAD + 8 * self._bounds.max_body):  # chunks of one byte
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[LEFT] = self._left  # type: ignore[literal-required]
        self._in_head, self._received = True, 0
        if self._arrival is None:
            self._expect()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            answer_without_chunks(self.cycle)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._received, self._since = True, 0, self.loop.time()
        if self._arrival:
            self._arrival.cancel()
            self._arrival = None
        if not self.pipeline:  # uvicorn reads on when the body is asked for; who goes must be noticed though it is not
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._taking is None and self.transport.get_write_buffer_size():
            self._wait_for_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taking is None:
            self._wait_for_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking:
            self._taking.cancel()
            self._taking = None

    def _expect(self) -> None:
        """A request, as a whole."""
        self._arrival = self.loop.call_later(self._bounds.body_timeout + GRACE, self.transport.abort)

    def _wait_for_reader(self) -> None:
        self._taking = self.loop.call_later(self._bounds.stall_timeout, self._cut)

    def _cut(self) -> None:
        self._taking = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()


def answer_without_chunks(cycle: RequestResponseCycle) -> None:
    """Answer as HTTP/1.0 reads it: a body of unknown length goes as it is and ends when the connection closes.

    uvicorn sends such a body in chunks whatever the client's version, unless it takes the length as known.
    """
    cycle.chunked_encoding, send = False, cycle.send

    async def send_plain(message: Any) -> None:
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_plain  # type: ignore[method-assign]


class Joined:
    """A transport that writes at once what is written to it in one turn of the event loop: each write is a call of the
    kernel, and dearer than a piece's text.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        self._flush()
        return self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))
