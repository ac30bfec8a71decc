"""The page at `/` on which one watches the engine, and the stream of events that it reads.

The page itself holds no secret and needs no key; the stream needs the server's, which the page asks for. It is sent in
a header, so that it stands in no log and no history. A watcher who reads slowly loses events, and gets a keyframe.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from nanoinfer.serve.errors import ApiError, bad
from nanoinfer.serve.fields import parse
from nanoinfer.serve.recording import read
from nanoinfer.serve.watch_hub import SLOWEST_S, Hub

WATCHERS = 32  # at once
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


def watch_routes(hub: Hub) -> list[Route]:
    """The routes of the page, if the server has one."""
    service, settings = hub.service, hub.service.config
    if not settings.watch:
        return []

    async def page(request: Request) -> Response:
        name, kind = FILES[request.url.path]
        return Response(read(name), headers=HEADERS, media_type=f"{kind}; charset=utf-8")

    async def events(request: Request) -> Response:
        service.check_open(rows=0)
        if hub.watchers >= WATCHERS:
            raise ApiError(503, f"{WATCHERS} watch already", code="too_many_watchers")
        if request.method == "HEAD":
            return Response(headers=HEADERS, media_type="text/event-stream")
        lines = hub.lines()
        await anext(lines)  # joins now: those who come at the same moment are counted
        return StreamingResponse(lines, media_type="text/event-stream", headers=HEADERS | {"x-accel-buffering": "no"})

    async def pace(request: Request) -> Response:
        given = parse(await request.body())
        if more := [name for name in given if name != "seconds"]:
            raise bad(more[0][:100], f"unknown field {more[0][:100]!r}", "unknown_parameter")
        seconds: Any = given.get("seconds")
        if type(seconds) not in (int, float) or not 0 <= seconds <= SLOWEST_S:
            raise bad("seconds", f"seconds must be a number from 0 to {SLOWEST_S:g}")
        if not hub.watchers:  # the last one to leave has set the pace back
            raise ApiError(409, "nobody watches, and then the engine is as fast as it can be", code="no_watcher")
        service.check_open(rows=0).pace(float(seconds))
        return JSONResponse({"seconds": seconds}, headers=HEADERS)

    routes = [*(Route(path, page) for path in FILES), Route("/watch/events", events)]
    return routes + [Route("/watch/pace", pace, methods=["POST"])] * settings.classroom
