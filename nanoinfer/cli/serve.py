"""`nanoinfer serve`: OpenAI's completions API over HTTP, with the engine in a process of its own."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from nanoinfer.cli.errors import Refused, explained
from nanoinfer.cli.options import BATCH, ModelOptions, derived, with_options
from nanoinfer.cli.plugins import needing
from nanoinfer.cli.terminal import remark
from nanoinfer.serve.config import BOUNDS, KEY_VARIABLE, ServeConfig, is_loopback

placed = partial(derived, ServeConfig, rich_help_panel="Server")
SERVER = (
    ServeConfig,
    placed("host", "port")
    + placed("api_key", envvar=KEY_VARIABLE)
    + placed("name", "replicas", "watch", "watch_texts", "classroom")
    + derived(ServeConfig, *BOUNDS, rich_help_panel="Bounds"),
)


@with_options(server=SERVER, model=BATCH)
def serve(*, server: ServeConfig, model: ModelOptions) -> None:
    """Serve completions over HTTP, in the shape of OpenAI's API.

    It listens at once: /live answers while the model loads, /health says when it
    is ready, /metrics is for Prometheus. What is bounded, and what a key does not
    protect: chapters/SERVING.md.

    Examples:
    nanoinfer serve
    nanoinfer serve -m gpt2 --port 8080 --max-batch 256
    nanoinfer serve -m gpt2-xl --tensor-parallel 2 --replicas 2
    NANOINFER_API_KEY=secret nanoinfer serve --host 0.0.0.0
    curl localhost:8000/v1/completions -d '{"model": "small", "prompt": "Once upon a time"}'
    Standard output has one JSON object a line: when it listens, when it is ready, each request.
    Exit code: 0 after SIGTERM or Ctrl-C, 1 where the engine has died, 2 refused, 130 after a second Ctrl-C.
    """
    for name in ("watch_texts", "classroom"):
        if getattr(server, name) and not server.watch:
            raise ValueError(f"{name} needs --watch")
    if server.api_key is None and KEY_VARIABLE in os.environ:  # typer takes an empty variable for none
        raise Refused(f"{KEY_VARIABLE} is empty: set it to a key, or unset it")
    with needing("serve", "serve"):
        from nanoinfer.remote.llm import ProcessLLM
        from nanoinfer.serve import run

    if (most := run.allow_descriptors(server.connections)) is not None:
        raise Refused(f"--connections must be at most {most} here, not {server.connections}: see `ulimit -Hn`")
    try:
        listening = run.bind(server)
    except OSError as error:
        raise Refused(f"cannot listen at {server.host}, port {server.port}: {error.strerror or error}") from error
    if not is_loopback(server.host) and server.api_key is None:
        remark(f"nanoinfer: anybody who can reach {server.host} may use this server: set {KEY_VARIABLE}")
    remark(f"nanoinfer: {model.name} at {run.url_of(listening)}, Ctrl-C ends it")
    if server.watch and server.replicas > 1:
        remark(f"nanoinfer: the page shows one of the {server.replicas} engines, the first that is alive")
    make = partial(ProcessLLM, model.model, replicas=server.replicas, **model.settings)
    cause = run.serve(make, replace(server, name=server.name or short_name(model.name)), listening)
    if isinstance(cause, ValueError):  # the model could not be loaded as it was asked for
        raise cause
    if cause is not None:
        remark(f"nanoinfer: the engine has died: {explained(cause, {})}")
    sys.stderr.flush()
    os._exit(0 if cause is None else 1)  # now: a thread that still loads a model would be waited for


def short_name(model: str) -> str:
    """What clients call it: of a folder or file its last part, since the rest is nobody's business."""
    path = Path(model).expanduser()
    return path.stem if path.suffix == ".safetensors" else path.name if path.exists() else model
