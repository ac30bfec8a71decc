"""The page at `/` on which one watches the engine, and the stream of events that it reads.

The page itself holds no secret and needs no key; the stream needs the server's, which the page asks for. It is sent in
a header, so that it stands in no log and no history. A watcher who reads slowly loses events, and gets a keyframe.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from nanoinfer.serve.errors import ApiError, bad
from nanoinfer.serve.events import Event
from nanoinfer.serve.fields import parse
from nanoinfer.serve.recording import read
from nanoinfer.serve.service import Service
from nanoinfer.serve.watch_source import Source, encoded

WATCHERS = 32  # at once
SLOWEST_S = 5.0  # a step, in a classroom
FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Hub:
    """A server's engine and all who watch it. While nobody does there is no source."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.source: Source | None = None

    @property
    def routes(self) -> list[Route]:
        """Of the page, if the server has one."""
        if not self.service.config.watch:
            return []
        routes = [*(Route(path, self._page) for path in FILES), Route("/watch/events", self._events)]
        return routes + [Route("/watch/pace", self._pace, methods=["POST"])] * self.service.config.classroom

    async def _page(self, request: Request) -> Response:
        name, kind = FILES[request.url.path]
        return Response(read(name), headers=HEADERS, media_type=f"{kind}; charset=utf-8")

    async def _events(self, request: Request) -> Response:
        self.service.check_open(rows=0)
        if self.watchers >= WATCHERS:
            raise ApiError(503, f"{WATCHERS} watch already", code="too_many_watchers")
        if request.method == "HEAD":
            return Response(headers=HEADERS, media_type="text/event-stream")
        lines = self.lines()
        await anext(lines)  # joins now: those who come at the same moment are counted
        return StreamingResponse(lines, media_type="text/event-stream", headers=HEADERS | {"x-accel-buffering": "no"})

    async def _pace(self, request: Request) -> Response:
        given = parse(await request.body())
        if more := [name for name in given if name != "seconds"]:
            raise bad(more[0][:100], f"unknown field {more[0][:100]!r}", "unknown_parameter")
        seconds: Any = given.get("seconds")
        if type(seconds) not in (int, float) or not 0 <= seconds <= SLOWEST_S:
            raise bad("seconds", f"seconds must be a number from 0 to {SLOWEST_S:g}")
        if not self.watchers:  # the last one to leave has set the pace back
            raise ApiError(409, "nobody watches, and then the engine is as fast as it can be", code="no_watcher")
        self.service.check_open(rows=0).pace(float(seconds))
        return JSONResponse({"seconds": seconds}, headers=HEADERS)

    @property
    def watchers(self) -> int:
        """How many watch."""
        return self.source.watchers if self.source else 0

    async def lines(self) -> AsyncIterator[bytes]:
        """What one watcher is sent, until they leave or the server or engine ends. Taking the first, empty, joins."""
        service, config = self.service, self.service.config
        if not self.source or not self.source.alive:
            self.source = Source(service.check_open(rows=0), config.watch_texts)
        source, read = self.source, 0
        source.watchers += 1
        told: Event = {"model": service.name, "key": config.api_key is not None, "slowest": SLOWEST_S}
        told |= {"texts": config.watch_texts, "classroom": config.classroom}
        try:
            yield b""
            yield b"event: settings\n" + encoded(told)
            while source.alive and not service.over.is_set():
                data, read = await source.after(read), source.made
                yield data or b": beat\n\n"
        finally:
            source.watchers -= 1
            if not source.watchers:
                source.close()
                if self.source is source:
                    self.source = None
                    if (llm := service.llm) and llm.alive:
                        llm.watch(None)
                        llm.pace(0.0)  # the last one leaves the engine as fast as it is
