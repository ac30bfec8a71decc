"""The targets that the options name, each made when its turn comes and gone before the next one's."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from nanobench.load.http_client import Endpoint
from nanobench.load.own_server import EXTRA, own_server
from nanobench.load.targets import EngineTarget, Server, Target
from nanoinfer.devices import choose_device

READY = 600.0  # seconds that a server of ours may take to load, and to capture its graphs


@dataclass(frozen=True)
class Listed:
    """A target by its name. opened: makes it, and ends it."""

    name: str
    what: str
    opened: Callable[[], AbstractContextManager[Target]]


@dataclass(frozen=True)
class Choice:
    """What is loaded: `targets` raises ValueError for what makes no sense, before anything is started."""

    engine: bool
    process: bool
    serve: bool
    urls: tuple[str, ...]
    model: str
    device: str | None
    dtype: str | None
    rows: int
    clients: int
    timeout: float
    api_key: str | None
    serve_options: tuple[str, ...]
    extra: Mapping[str, Any] | None  # None: what our own server has beside OpenAI's fields

    def targets(self) -> list[Listed]:
        """In the order in which they are loaded: what has no HTTP first."""
        found = []
        settings = {"engine": self._recipe, "max_batch": self.rows, "device": self.device, "dtype": self.dtype}
        if self.engine:
            found.append(Listed("engine", f"AsyncLLM in this process, {self._recipe}", lambda: self._engine(settings)))
        if self.process:
            what = f"an engine in a process of its own, {self._recipe}"
            found.append(Listed("process", what, lambda: self._process(settings)))
        if self.serve:
            found.append(Listed("serve", f"nanoinfer serve {shlex.join(self._options)}", self._served))
        for given in self.urls:
            name, equals, url = given.partition("=")
            name, url = (name, url) if equals and "/" not in name else (urlsplit(given).netloc, given)
            server = self._server(name, Endpoint.of(url, self.api_key), self.extra or {})
            found.append(Listed(name, url, lambda server=server: nullcontext(server)))  # type: ignore[misc]
        if len({listed.name for listed in found}) < len(found):
            raise ValueError("each target must have a name of its own: --url NAME=URL gives one")
        return found

    @property
    def ours(self) -> bool:
        """Whether anything of ours is loaded."""
        return self.engine or self.process or self.serve

    @property
    def _recipe(self) -> str:
        return "paged-graph" if choose_device(self.device).type == "cuda" else "paged"

    @property
    def _options(self) -> tuple[str, ...]:
        given = {"model": self.model, "device": self.device, "dtype": self.dtype, "engine": self._recipe}
        options = [word for name, value in given.items() if value for word in (f"--{name}", value)]
        return (*options, "--max-batch", str(self.rows), *self.serve_options)

    def _server(self, name: str, endpoint: Endpoint, extra: Mapping[str, Any]) -> Server:
        return Server(name, endpoint, self.model, self.clients, self.timeout, extra)

    def _engine(self, settings: Mapping[str, Any]) -> AbstractContextManager[Target]:
        from nanoinfer import AsyncLLM

        return EngineTarget("engine", AsyncLLM(self.model, **settings)).opened()

    def _process(self, settings: Mapping[str, Any]) -> AbstractContextManager[Target]:
        from nanoinfer.remote.llm import ProcessLLM

        return EngineTarget("process", ProcessLLM(self.model, **settings)).opened()

    @contextmanager
    def _served(self) -> Iterator[Target]:
        with own_server(self._options, READY) as url:
            extra = EXTRA if self.extra is None else self.extra
            yield self._server("serve", Endpoint.of(url), extra)
