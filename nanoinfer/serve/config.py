"""The server's settings: where it listens, and a bound for everything that a client could make large."""

from __future__ import annotations

import ipaddress
import math
import socket
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import typer

KEY_VARIABLE = "NANOINFER_API_KEY"
LEAST = {
    "port": 0, "replicas": 1, "queue": 0, "connections": 1, "max_body": 1, "max_prompt_tokens": 1, "max_tokens": 1,
    "max_rows": 1, "max_stops": 0, "max_stop_length": 1, "drain_timeout": 0,
}  # fmt: skip


def server(sentence: str, *names: str, **more: Any) -> Any:
    """An option of where and how it listens."""
    return typer.Option(*names, help=sentence, rich_help_panel="Server", **more)


def bound(sentence: str, **more: Any) -> Any:
    """An option that bounds what a client could make large."""
    return typer.Option(help=sentence, rich_help_panel="Bounds", **more)


@dataclass(frozen=True)
class ServeConfig:
    """Options of `nanoinfer serve`, by name. ValueError, one sentence, for what makes no sense."""

    host: Annotated[str, server("Address to listen at; 0.0.0.0 is every one of this machine.")] = "127.0.0.1"
    port: Annotated[int, server("Port to listen at; 0 takes a free one and prints it.")] = 8000
    api_key: Annotated[
        str | None,
        server(
            "Ask for this key. Everybody on the machine can read a command line, so prefer the variable.",
            envvar=KEY_VARIABLE,
            show_default=False,
        ),
    ] = None
    name: Annotated[str | None, server("What clients call the model.", show_default="the model's")] = None
    replicas: Annotated[int, server("Engines behind one queue, each in a process and on GPUs of its own.")] = 1
    watch: Annotated[bool, server("A page at / on which one watches the engine work.", "--watch")] = False
    watch_texts: Annotated[bool, server("It shows prompts and texts.", "--watch-texts")] = False
    classroom: Annotated[bool, server("It can slow the engine down.", "--classroom")] = False
    queue: Annotated[int, bound("Rows that may wait behind those that run; 429 beyond.")] = 256
    connections: Annotated[int, bound("Open connections; 503 beyond.")] = 1024
    max_body: Annotated[int, bound("Bytes of one request's body; 413 beyond.")] = 1 << 20
    max_prompt_tokens: Annotated[int | None, bound("Tokens of a prompt; 400 beyond.", show_default="the context")] = (
        None
    )
    max_tokens: Annotated[int | None, bound("The largest max_tokens; 400 beyond.", show_default="no bound")] = None
    max_rows: Annotated[int, bound("Prompts times n of one request; 400 beyond.")] = 128
    max_stops: Annotated[int, bound("Stop strings of one request; 400 beyond.")] = 4
    max_stop_length: Annotated[int, bound("Characters of one stop string; 400 beyond.")] = 256
    request_timeout: Annotated[float, bound("Seconds for one request; then 504, or an error in its stream.")] = 600.0
    body_timeout: Annotated[float, bound("Seconds to send a request's body; then 408.")] = 30.0
    stall_timeout: Annotated[float, bound("Seconds to take what is ready; then the connection is cut.")] = 30.0
    hang_timeout: Annotated[float, bound("Seconds without a step while rows run; then it ends with an error.")] = 120.0
    drain_timeout: Annotated[float, bound("Seconds that running requests have after SIGTERM or Ctrl-C.")] = 30.0

    def __post_init__(self) -> None:
        for name, low in LEAST.items():
            if (value := getattr(self, name)) is not None and not low <= value < math.inf:
                raise ValueError(f"{name} must be at least {low}, not {value}")
        for name in ("request_timeout", "body_timeout", "stall_timeout", "hang_timeout"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be more than 0 seconds, not {value}")
        if self.port > 65535:
            raise ValueError(f"port must be at most 65535, not {self.port}")
        key = self.api_key  # HTTP strips blanks at its ends
        if key is not None and not (key.isascii() and key.isprintable() and key == key.strip() and key):
            raise ValueError("api_key must be printable ASCII of at least one character, without blanks at its ends")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@lru_cache(64)
def knows_host(header: str, listens: str) -> bool:
    """Whether a Host header names this machine by an address, or by a name that it has itself.

    Another name may be one that somebody else has pointed here (DNS rebinding), so that the pages under it may read us.
    """
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    try:
        ipaddress.ip_address(name.strip("[]"))
        return True
    except ValueError:
        return name.lower() in {"localhost", listens.lower(), socket.gethostname().lower()}
