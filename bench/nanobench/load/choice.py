"""The targets that the options name, each made when its turn comes and gone before the next one's."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from nanobench.load.http_client import Endpoint
from nanobench.load.own_server import EXTRA, own_server
from nanobench.load.targets import EngineTarget, Server, Target
from nanoinfer import AsyncLLM
from nanoinfer.remote.llm import ProcessLLM

LLMS: dict[str, tuple[str, Callable[..., Any]]] = {
    "engine": ("AsyncLLM in this process", AsyncLLM), "process": ("an engine in a process of its own", ProcessLLM),
}  # fmt: skip


@dataclass(frozen=True)
class Listed:
    """A target by its name. opened: makes it, and ends it."""

    name: str
    what: str
    opened: Callable[[], AbstractContextManager[Target]]


def targets(
    kinds: Sequence[str], urls: Sequence[str], settings: Mapping[str, Any], http: Mapping[str, Any],
    api_key: str | None, serve_options: Sequence[str], extra: Mapping[str, Any] | None,
) -> list[Listed]:  # fmt: skip
    """In the order in which they are loaded: what has no HTTP first. ValueError for what makes no sense.

    kinds: of ours, engine, process and serve. settings: of ours, model, device, dtype, engine and max_batch. http:
    model, clients and timeout. extra: None is what our own server has beside OpenAI's fields.
    """
    server: Callable[..., Server] = partial(Server, **http)
    found = list[Listed]()
    for kind, (what, make) in LLMS.items():
        if kind in kinds:
            found.append(Listed(kind, f"{what}, {settings['engine']}", partial(_opened, kind, make, settings)))
    if "serve" in kinds:
        words = [(f"--{name.replace('_', '-')}", str(value)) for name, value in settings.items() if value]
        options = (*(word for pair in words for word in pair), *serve_options)
        served = partial(_served, options, server, EXTRA if extra is None else extra)
        found.append(Listed("serve", f"nanoinfer serve {shlex.join(options)}", served))
    for given in urls:
        name, equals, url = given.partition("=")
        name, url = (name, url) if equals and "/" not in name else (urlsplit(given).netloc, given)
        made = server(name, Endpoint.of(url, api_key), extra=extra or {})
        found.append(Listed(name, url, partial(nullcontext[Target], made)))
    if len({listed.name for listed in found}) < len(found):
        raise ValueError("each target must have a name of its own: --url NAME=URL gives one")
    return found


@contextmanager
def _opened(name: str, make: Callable[..., Any], settings: Mapping[str, Any]) -> Iterator[Target]:
    with EngineTarget(name, make(**settings)).opened() as target:
        yield target


@contextmanager
def _served(options: Sequence[str], server: Callable[..., Server], extra: Mapping[str, Any]) -> Iterator[Target]:
    with own_server(options) as url:
        yield server("serve", Endpoint.of(url), extra=extra)
