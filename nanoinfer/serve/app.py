"""The application: an ordinary ASGI one, its routes and who may call them.

What needs no key is `/live`, `/health` and `/metrics`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from nanoinfer.async_llm import AsyncLLM
from nanoinfer.serve.completions import Completions, request_id
from nanoinfer.serve.config import ServeConfig, is_loopback, knows_host
from nanoinfer.serve.errors import ApiError
from nanoinfer.serve.limits import Limits
from nanoinfer.serve.metrics import Metrics
from nanoinfer.serve.service import Service

OPEN = frozenset({"/live", "/health", "/metrics"})
READ = ["GET", "HEAD"]
NO_CHAT = "GPT-2 has no chat format, so it has no chat completions: send the text to continue to /v1/completions"


def make_app(llm: AsyncLLM | Callable[[], AsyncLLM] | Service, settings: ServeConfig | None = None) -> FastAPI:
    """Make the application, for any ASGI server. llm: an AsyncLLM, what makes one, or a service that has one.

    The lifespan starts the service, which is `app.state.service`, and ends it. app.state.open_paths: paths that need no
    key; a page may add its own.
    """
    service = llm if isinstance(llm, Service) else Service(llm, settings or ServeConfig())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="nanoinfer", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan, redirect_slashes=False
    )
    app.state.service, app.state.open_paths = service, set(OPEN)
    app.add_middleware(Access, service=service, open_paths=app.state.open_paths)
    app.add_middleware(Limits, config=service.config)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(ApiError, _refused)
    app.router.routes.append(Route("/v1/completions", Completions(service)))
    _add_routes(app, service)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    collected = Metrics(service)

    @app.api_route("/live", methods=READ)
    async def live() -> dict[str, str]:
        """The process answers."""
        return {"status": "live"}

    @app.api_route("/health", methods=READ)
    async def health(response: Response) -> dict[str, Any]:
        """Whether a request that is sent now is answered. A full queue changes nothing here."""
        ready = service.phase == "ready" and service.llm is not None and service.llm.alive
        response.status_code = 200 if ready else 503
        phase = "dead" if service.phase == "ready" and not ready else service.phase
        return {"status": phase, "ready_seconds": round(service.ready_s, 3) if service.ready_s else None}

    @app.api_route("/metrics", methods=READ)
    async def metrics() -> Response:
        return Response(collected.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.api_route("/v1/models", methods=READ)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [await model(service.name)]}

    @app.api_route("/v1/models/{name:path}", methods=READ)
    async def model(name: str) -> dict[str, Any]:
        if name != service.name:
            raise ApiError(404, f"there is no model {name!r:.100} here", code="model_not_found")
        context = service.llm.facts.max_len if service.llm else None
        own = {"owned_by": "nanoinfer", "max_model_len": context}
        return {"id": name, "object": "model", "created": service.created, **own}

    @app.api_route("/v1/chat/completions", methods=[*READ, "POST"])
    async def chat() -> None:
        raise ApiError(404, NO_CHAT, code="no_chat_format")


async def _not_found(request: Request, error: Any) -> Response:
    what = f"{request.method} {request.url.path[:100]}: {error.detail}".lower()
    return ApiError(error.status_code, what).response(error.headers)


async def _refused(request: Request, error: Any) -> Response:
    response: Response = error.response()
    return response


class Access:
    """ASGI middleware that lets in who has the key, if there is one, and calls this server by a name of its own."""

    def __init__(self, app: ASGIApp, service: Service, open_paths: set[str]) -> None:
        self.app, self.service, self.open_paths = app, service, open_paths
        self.key, self.host = service.config.api_key, service.config.host
        self.local = self.key is None and is_loopback(self.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self.open_paths:
            try:
                self._check(scope, Headers(scope=scope))
            except ApiError as error:
                return await error.response()(scope, receive, send)
        await self.app(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """ApiError for a page that calls this machine by another name (DNS rebinding), or a request without the key.

        A page cannot guess a key, and a server that listens to others may be called by any name.
        """
        for named in headers.getlist("host") if self.local else ():
            if not knows_host(named, self.host):
                what = f"this server does not go by the name {named!r:.80}: ask for {self.host}, or give it an API key"
                raise ApiError(403, what, code="unknown_host")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if self.key is not None and not (_same(given.strip(), self.key) and scheme.lower() == "bearer"):
            name = request_id(headers)
            self.service.log(event="unauthorized", id=name, path=scope["path"][:100])
            what = "this server asks for its API key: Authorization: Bearer KEY"
            more = {"www_authenticate": "Bearer", "connection": "close", "x_request_id": name}
            raise ApiError(401, what, code="invalid_api_key", **more)


def _same(given: str, key: str) -> bool:
    """Whether they are equal. How long the look takes says nothing about how much of it is right."""
    return hmac.compare_digest(*(hashlib.sha256(each.encode("latin-1")).digest() for each in (given, key)))
