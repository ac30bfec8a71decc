"""The application, an ordinary ASGI one: its routes, and who may call them."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from nanoinfer.async_llm import AsyncLLM
from nanoinfer.serve.completions import Completions, request_id
from nanoinfer.serve.config import ServeConfig, is_loopback, knows_host
from nanoinfer.serve.errors import ApiError
from nanoinfer.serve.limits import limited
from nanoinfer.serve.metrics import Metrics
from nanoinfer.serve.service import Service
from nanoinfer.serve.watch import FILES, Hub

OPEN = frozenset({"/live", "/health", "/metrics"})  # what needs no key
NO_CHAT = "GPT-2 has no chat format, so it has no chat completions: send the text to continue to /v1/completions"


class App:
    """The application, for any ASGI server; its lifespan starts the service and ends it.

    llm: an AsyncLLM, what makes one, or a service that has one. watch: all who watch, where there is a page for it.
    """

    def __init__(self, llm: AsyncLLM | Callable[[], AsyncLLM] | Service, settings: ServeConfig | None = None) -> None:
        self.service = llm if isinstance(llm, Service) else Service(llm, settings or ServeConfig())
        self.watch = Hub(self.service)
        self.router = Router(
            [
                Route("/v1/completions", Completions(self.service), methods=["POST"]),
                Route("/live", self._live),
                Route("/health", self._health),
                Route("/metrics", Metrics(self.service).page),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._models),
                Route("/v1/chat/completions", self._chat, methods=["GET", "POST"]),
                *self.watch.routes,
            ],
            redirect_slashes=False,
            lifespan=self._lifespan,
        )
        config = self.service.config
        self._limited = limited(self.router, config)
        self._local = config.api_key is None and is_loopback(config.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # so that the router raises what is to be answered
        try:
            if scope["type"] == "http" and scope["path"] not in OPEN:
                self._check(scope, Headers(scope=scope))
            await self._limited(scope, receive, send)
        except HTTPException as error:
            what = f"{scope['method']} {scope['path'][:100]}: {error.detail}".lower()
            await ApiError(error.status_code, what, **(error.headers or {})).response()(scope, receive, send)
        except ApiError as error:
            await error.response()(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Refuse a request without the key, or one that calls this machine by another name (DNS rebinding).

        A page of others cannot guess a key, and a server that listens to others may be called by any name; but what
        watches answers no other page, whatever its name. Of two names, a proxy may have read the other: RFC 9112, 3.2.
        """
        config, hosts, path = self.service.config, headers.getlist("host"), scope["path"]
        page = config.watch and (path in FILES or path.startswith("/watch/"))
        if len(hosts) > 1 or not (hosts or scope["http_version"] == "1.0"):
            raise ApiError(400, f"a request must have one Host header, not {len(hosts)}", connection="close")
        host = hosts[0] if hosts else ""
        if (page or (self._local and hosts)) and not knows_host(host, config.host):
            what = f"this server does not go by the name {host!r:.80}: ask for {config.host}"
            raise ApiError(403, what + ", or give it an API key" * (not page), code="unknown_host")
        if page and headers.get("origin", host).rpartition("://")[2] != host:
            raise ApiError(403, "this page answers no other origin", code="other_origin")
        if page and path in FILES:  # it has no secret
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("latin-1"), (config.api_key or "").encode())
        if config.api_key is not None and not (same and scheme.lower() == "bearer"):
            name = request_id(headers)
            self.service.log(event="unauthorized", id=name, path=path[:100])
            what = "this server asks for its API key: Authorization: Bearer KEY"
            more = {"www_authenticate": "Bearer", "connection": "close", "x_request_id": name}
            raise ApiError(401, what, code="invalid_api_key", **more)

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        self.service.go(self.service.start())
        yield
        await self.service.stop()

    async def _live(self, request: Request) -> Response:
        """The process answers."""
        return JSONResponse({"status": "live"})

    async def _health(self, request: Request) -> Response:
        """Whether a request that is sent now is answered. A full queue changes nothing here."""
        service = self.service
        ready = service.phase == "ready" and service.llm is not None and service.llm.alive
        phase = "dead" if service.phase == "ready" and not ready else service.phase
        seconds = round(service.ready_s, 3) if service.ready_s else None
        return JSONResponse({"status": phase, "ready_seconds": seconds}, 200 if ready else 503)

    async def _models(self, request: Request) -> Response:
        service, name = self.service, request.path_params.get("name")
        if name not in (None, service.name):
            raise ApiError(404, f"there is no model {name!r:.100} here", code="model_not_found")
        own = {"owned_by": "nanoinfer", "max_model_len": service.llm.facts.max_len if service.llm else None}
        model = {"id": service.name, "object": "model", "created": service.created, **own}
        return JSONResponse(model if name else {"object": "list", "data": [model]})

    async def _chat(self, request: Request) -> Response:
        raise ApiError(404, NO_CHAT, code="no_chat_format")
