"""A lean client of an OpenAI-shaped server: it notes when bytes come, and reads them once the run is over.

While requests are under way, a piece costs this process one read of the socket and one look at the clock; HTTP, events
and JSON are taken apart afterwards. Each request has a connection of its own, which the server closes at the end.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import httptools

from nanobench.load.drive import Reply

LAST_CHUNK = b"\r\n0\r\n\r\n"  # the end of a body in chunks, where a server leaves its connection open


@dataclass(frozen=True)
class Endpoint:
    """Where completions are asked for."""

    host: str
    port: int
    path: str
    tls: bool
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, url: str, api_key: str | None = None) -> Endpoint:
        """Of `http://HOST:PORT`, with or without `/v1` behind it. ValueError for another."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must be like http://127.0.0.1:8000, not {url!r}")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("api-key must be of printable ASCII characters")
        base, tls = parts.path.rstrip("/"), parts.scheme == "https"
        path = f"{base if base.endswith('/v1') else base + '/v1'}/completions"
        key = (("Authorization", f"Bearer {api_key}"),) if api_key else ()
        return cls(parts.hostname, port or (443 if tls else 80), path, tls, (("Host", parts.netloc), *key))

    def request(self, body: Mapping[str, Any]) -> bytes:
        """The bytes of a POST."""
        content = json.dumps(body, separators=(",", ":")).encode()
        fixed = {"Content-Type": "application/json", "Content-Length": len(content), "Connection": "close"}
        lines = [f"{name}: {value}" for name, value in (*self.headers, *fixed.items())]
        return "\r\n".join([f"POST {self.path} HTTP/1.1", *lines, "", ""]).encode() + content


@dataclass(frozen=True)
class Raw:
    """All that came back, with the times at which it came; error: how the connection ended, if not well."""

    chunks: tuple[tuple[float, bytes], ...]
    error: str = ""


class Connection(asyncio.Protocol):
    """One request, and what comes back."""

    def __init__(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._request, self._clock = request, loop.time
        self.chunks: list[tuple[float, bytes]] = []
        self.over: asyncio.Future[str] = loop.create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.chunks.append((self._clock(), data))
        if data.endswith(LAST_CHUNK) and not self.over.done():
            self.over.set_result("")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result("" if exc is None else f"connection lost: {exc.__class__.__name__}")


async def exchange(endpoint: Endpoint, address: str, request: bytes, timeout: float) -> Raw:
    """Send a request and take down what comes. address: of the host, resolved. No error is raised but cancellation."""
    protocol, error = Connection(request), ""

    async def all_of_it() -> str:
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if endpoint.tls:
            tls = {"ssl": ssl.create_default_context(), "server_hostname": endpoint.host}
        transport, _ = await loop.create_connection(lambda: protocol, address, endpoint.port, **tls)
        try:
            return await protocol.over
        finally:
            transport.close()

    try:
        error = await asyncio.wait_for(all_of_it(), timeout)
    except (TimeoutError, asyncio.TimeoutError):
        error = f"no end within {timeout:g} s"
    except OSError as failure:
        error = f"no connection: {failure.__class__.__name__}"
    return Raw(tuple(protocol.chunks), error)


class Reader:
    """Takes the bytes of one answer apart; `reply` is what they say."""

    def __init__(self) -> None:
        self.status, self.ended = 0, False
        self.finish: str | None = None
        self.error = ""
        self.times: list[float] = []  # of pieces with tokens
        self.ids = 0
        self.usage: int | None = None
        self._now, self._rest, self._body = 0.0, b"", b""
        self._parser: Any = httptools.HttpResponseParser(self)

    # What the parser calls.
    def on_body(self, body: bytes) -> None:
        if self.status != 200:
            self._body += body
            return
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.ended = True
            return
        event = json.loads(data)
        if event.get("error"):
            self.error = self.error or f"error event: {_message(event)}"
            return
        if (usage := event.get("usage")) and usage.get("completion_tokens") is not None:
            self.usage = int(usage["completion_tokens"])
        for choice in event.get("choices") or ():
            ids = choice.get("token_ids")
            self.ids += len(ids or ())
            if ids or (ids is None and choice.get("text")):
                self.times.append(self._now)
            self.finish = choice.get("finish_reason") or self.finish

    def reply(self, raw: Raw) -> Reply:
        """What came, and whether it is a whole answer."""
        try:
            for self._now, data in raw.chunks:
                self._parser.feed_data(data)
        except httptools.HttpParserError as failure:  # whatever a callback raised is its context
            self.error = self.error or f"garbage: {(failure.__context__ or failure).__class__.__name__}"
        self.ended = self.ended or self._rest.strip() == b"data: [DONE]"
        by: Literal["ids", "usage", "pieces"] = "ids" if self.ids else "usage" if self.usage else "pieces"
        tokens = self.ids or self.usage or len(self.times)
        known = (tokens, tuple(self.times[:tokens]))
        if 400 <= self.status < 500 or self.status == 503:
            return Reply("refused", f"HTTP {self.status}{self._said()}", *known)
        if reason := self._wrong(raw):
            return Reply("failed", reason, *known)
        return Reply("ok", "", *known, raw.chunks[-1][0], by)

    def _wrong(self, raw: Raw) -> str:
        """Why this is no answer; empty where it is one."""
        found = {
            self.error: bool(self.error),
            f"HTTP {self.status}{self._said()}": self.status not in (0, 200),
            raw.error: bool(raw.error),
            "closed without an answer": not raw.chunks,
            "cut: the stream ended without [DONE]": not self.ended,
            "no finish_reason": self.finish is None,
            "no token": not self.times,
        }
        return next((reason for reason, applies in found.items() if applies), "")

    def _said(self) -> str:
        try:
            return f": {_message(json.loads(self._body))}"
        except (ValueError, TypeError, AttributeError):
            return ""


def _message(body: Any) -> str:
    """What an error of OpenAI's shape says, in short."""
    error = body.get("error", body)
    return str(error.get("type") or error.get("message") if isinstance(error, dict) else error)[:60]
