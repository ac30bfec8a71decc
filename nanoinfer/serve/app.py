"""The routes. What needs no key and no free place is `/live`, `/health` and `/metrics`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from nanoinfer.async_llm import AsyncLLM
from nanoinfer.serve.completions import OVER, Completions, Message, Receive, Send, request_id
from nanoinfer.serve.config import ServeConfig, is_loopback, knows_host
from nanoinfer.serve.errors import ApiError, unavailable
from nanoinfer.serve.metrics import Collector
from nanoinfer.serve.service import Service

OPEN = frozenset({"/live", "/health", "/metrics"})
READ = ["GET", "HEAD"]
NO_CHAT = "GPT-2 has no chat format, so it has no chat completions: send the text to continue to /v1/completions"


def make_app(llm: AsyncLLM | Service, settings: ServeConfig | None = None) -> FastAPI:
    """The application. Its lifespan starts the service, which is `app.state.service`.

    app.state.open_paths: paths that need no key; a page may add its own.
    """
    service = llm if isinstance(llm, Service) else Service(llm, settings or ServeConfig())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield

    app = App(
        title="nanoinfer", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan, redirect_slashes=False
    )
    app.lead(service)
    app.add_exception_handler(HTTPException, _not_found)
    _add_state(app, service)
    _add_models(app, service)
    return app


def _add_state(app: FastAPI, service: Service) -> None:
    collector = Collector(service)

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
        return Response(collector.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_models(app: FastAPI, service: Service) -> None:
    def model() -> dict[str, Any]:
        context = service.llm.facts.max_len if service.llm else None
        own = {"owned_by": "nanoinfer", "max_model_len": context}
        return {"id": service.name, "object": "model", "created": service.created, **own}

    @app.api_route("/v1/models", methods=READ)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model()]}

    @app.api_route("/v1/models/{name:path}", methods=READ)
    async def one(name: str) -> Response:
        if name != service.name:
            return _response(ApiError(404, f"there is no model {name!r:.100} here", code="model_not_found"))
        return JSONResponse(model())

    @app.api_route("/v1/chat/completions", methods=[*READ, "POST"])
    async def chat() -> Response:
        return _response(ApiError(404, NO_CHAT, code="no_chat_format"))


def _response(error: ApiError) -> Response:
    return Response(error.body, error.status, error.headers, "application/json")


def _without_one_host(scope: Message) -> ApiError | None:
    """Refuse a request with two names for this server, of which a proxy may have read the other: RFC 9112, 3.2."""
    hosts = sum(name == b"host" for name, _ in scope["headers"])
    if hosts == 1 or (hosts == 0 and scope["http_version"] == "1.0"):
        return None
    return ApiError(400, f"a request must have one Host header, not {hosts}", headers={"connection": "close"})


async def _not_found(request: Request, error: Any) -> Response:
    what = f"{request.method} {request.url.path[:100]}"
    return _response(ApiError(error.status_code, f"{what}: {error.detail}".lower(), headers=error.headers))


class App(FastAPI):
    """What comes first: the key, and the bound on connections. Completions go to their endpoint past all middleware."""

    def lead(self, service: Service) -> None:
        """To this service."""
        self.state.service, self.state.open_paths = service, set(OPEN)
        self._service, self._completions = service, Completions(service)
        key = service.config.api_key
        self._key = None if key is None else hashlib.sha256(key.encode()).digest()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self.state.open_paths:
            error = (
                _without_one_host(scope)
                or self._of_another_host(scope)
                or (None if self._knows(scope) else self._refused(scope))
            )
            if error is None and scope["path"] == "/v1/completions":
                return await self._completions(scope, receive, send)
            if error is None and scope.get(OVER):
                error = unavailable("too many connections are open", "too_many_connections")
            if error is not None:
                return await _response(error)(scope, receive, send)
        await super().__call__(scope, receive, send)

    def _of_another_host(self, scope: Message) -> ApiError | None:
        """Refuse a page that reaches this server by another name for this machine (DNS rebinding).

        A page cannot guess a key, and a server that listens to others may be called by any name.
        """
        host = self._service.config.host
        if self._key is not None or not is_loopback(host):
            return None
        named = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "localhost")
        if knows_host(named, host):
            return None
        what = f"this server is not known under the name {named!r:.80}: ask for {host}, or give the server an API key"
        return ApiError(403, what, code="unknown_host")

    def _knows(self, scope: Message) -> bool:
        """Whether the request has the key. How long the look takes says nothing about how much of it is right."""
        if self._key is None:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        right = hmac.compare_digest(hashlib.sha256(key.strip()).digest(), self._key)
        return right and scheme.lower() == b"bearer"

    def _refused(self, scope: Message) -> ApiError:
        name = request_id(scope)
        self._service.log(event="unauthorized", id=name, path=scope["path"][:100])
        headers = {"www-authenticate": "Bearer", "connection": "close", "x-request-id": name}
        what = "this server asks for its API key: Authorization: Bearer KEY"
        return ApiError(401, what, code="invalid_api_key", headers=headers)
