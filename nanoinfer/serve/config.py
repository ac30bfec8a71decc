"""The server's settings: where it listens, and a bound for everything that a client could make large."""

from __future__ import annotations

import ipaddress
import math
import socket
from dataclasses import dataclass
from typing import Any

KEY_VARIABLE = "NANOINFER_API_KEY"
LEAST = {"port": 0, "replicas": 1}
BOUNDS = {  # what a client could make large, and the least that each may be
    "queue": 0, "connections": 1, "max_body": 1, "max_prompt_tokens": 1, "max_tokens": 1, "max_rows": 1, "max_stops": 0,
    "max_stop_length": 1, "request_timeout": 0.001, "body_timeout": 0.001, "stall_timeout": 0.001,
    "hang_timeout": 0.001, "drain_timeout": 0,
}  # fmt: skip


@dataclass(frozen=True)
class ServeConfig:
    """Options of `nanoinfer serve`, whose help is made of these lines. ValueError, one sentence, for what is wrong.

    host: address to listen at; 0.0.0.0 is every one of this machine.
    port: port to listen at; 0 takes a free one and prints it.
    api_key: ask for this key. Everybody on the machine can read a command line, so prefer the variable.
    name: what clients call the model. None: the model's.
    replicas: engines behind one queue, each in a process and, on GPUs, with devices of its own.
    watch: a page at / on which one watches the engine work.
    watch_texts: it shows prompts and texts.
    classroom: it can slow the engine down.
    queue: rows that may wait behind those that run; 429 beyond.
    connections: open connections; 503 beyond.
    max_body: bytes of one request's body; 413 beyond.
    max_prompt_tokens: tokens of one prompt; 400 beyond. None: the context.
    max_tokens: the largest max_tokens; 400 beyond. None: none, the context ends a text.
    max_rows: prompts times n of one request; 400 beyond.
    max_stops: stop strings of one request; 400 beyond.
    max_stop_length: characters of one stop string; 400 beyond.
    request_timeout: seconds for one request; then 504, or an error in its stream.
    body_timeout: seconds to send a request's body; then 408.
    stall_timeout: seconds to take what is ready; then the connection is cut.
    hang_timeout: seconds without a step while rows run; then it ends with an error.
    drain_timeout: seconds that running requests have after SIGTERM or Ctrl-C.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    name: str | None = None
    replicas: int = 1
    watch: bool = False
    watch_texts: bool = False
    classroom: bool = False
    queue: int = 256
    connections: int = 1024
    max_body: int = 1 << 20
    max_prompt_tokens: int | None = None
    max_tokens: int | None = None
    max_rows: int = 128
    max_stops: int = 4
    max_stop_length: int = 256
    request_timeout: float = 600.0
    body_timeout: float = 30.0
    stall_timeout: float = 30.0
    hang_timeout: float = 120.0
    drain_timeout: float = 30.0

    def __post_init__(self) -> None:
        for name, low in (LEAST | BOUNDS).items():
            value: Any = getattr(self, name)
            if value is not None and not low <= value < math.inf:
                raise ValueError(f"{name} must be at least {low}, not {value}")
        if self.port > 65535:
            raise ValueError(f"port must be at most 65535, not {self.port}")
        if self.classroom and not is_loopback(self.host):
            raise ValueError(f"host must be 127.0.0.1 where a classroom may slow the engine down, not {self.host}")
        key = self.api_key  # HTTP strips blanks at its ends
        if key is not None and not (key.isascii() and key.isprintable() and key == key.strip() and key):
            raise ValueError("api_key must be printable ASCII of at least one character, without blanks at its ends")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    found = address(host)
    return found.is_loopback if found else host.lower() == "localhost"


def knows_host(header: str, listens: str) -> bool:
    """Whether a Host header names this machine by an address, or by a name that it has itself.

    Another name may be one that somebody else has pointed here (DNS rebinding), so that the pages under it may read us.
    """
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    return address(name) is not None or name.lower() in {"localhost", listens.lower(), socket.gethostname().lower()}


def address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that this is, if it is one."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
