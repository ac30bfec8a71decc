"""The targets that the options name, each made when its turn comes and gone before the next one's.

This server is started for a run and stopped after it: `nanoinfer serve` in a process of its own.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from nanobench.core.machine import child_environment
from nanobench.load.http_client import Endpoint
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
        found.append(Listed(name, url, lambda made=made: nullcontext(made)))  # type: ignore[misc]
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


EXTRA = {"ignore_eos": True, "return_token_ids": True}  # fields that it has beside OpenAI's
KEY_VARIABLE = "NANOINFER_API_KEY"  # it would ask for
PATIENCE = 600.0  # seconds that it may take to load, and to capture its graphs
GRACE = 60.0  # seconds from SIGTERM to the end


@contextmanager
def own_server(options: Sequence[str]) -> Iterator[str]:
    """Its URL, once it is ready. options: of `nanoinfer serve`. OSError, with its last words, if it does not start.

    It is in a session of its own, so that Ctrl-C ends the requests first.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "nanoinfer", "serve", "--port", str(port), *options]
    with tempfile.TemporaryFile() as log:
        environment = {name: value for name, value in child_environment().items() if name != KEY_VARIABLE}
        server = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        try:
            deadline = time.monotonic() + PATIENCE
            while not _ready(url):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    said = log.read().decode(errors="replace").strip().splitlines()[-3:]
                    what = "ended" if server.poll() is not None else f"was not ready within {PATIENCE:g} s"
                    raise OSError(f"`{' '.join(command[2:])}` {what}: {' '.join(said) or 'it said nothing'}")
                time.sleep(0.1)
            yield url
        finally:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(GRACE)
            server.kill()
            server.wait()


def _ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
        return bool(answer.status == 200)
    return False
