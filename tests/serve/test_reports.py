"""Clients and machines as they are: what people reported of servers of this kind, asked of ours over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.serving import PATH, Served, children, command, gone, parsed, rest, until

BODY = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 2}).encode()
# What java.net.http.HttpClient sends with its first request, unless it is told to speak HTTP/1.1.
JAVA = (
    b"POST /v1/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: %d\r\n"
    b"Host: 127.0.0.1\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n"
    b"User-Agent: Java-http-client/21.0.1\r\nContent-Type: application/json\r\n\r\n" % len(BODY)
)


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the one answer that is read."""
    head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("cuts", [[], range(1, 700), [JAVA.index(b"grade"), len(JAVA) - 2, len(JAVA) - 1]])
def test_an_offer_of_another_protocol_is_not_taken_up(server: Served, cuts: Any) -> None:
    """However the request is cut into segments, its body is read."""
    sent = JAVA.replace(b"Content-Type", b"Connection: close\r\nContent-Type") + BODY
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        edges = [0, *[cut for cut in cuts if cut < len(sent)], len(sent)]
        for start, stop in pairwise(edges):
            connection.sendall(sent[start:stop])
        status, body = answer(connection)
    assert status == 200, body
    assert json.loads(body)["usage"]["completion_tokens"] == 2


def test_a_connection_goes_on_after_such_an_offer(server: Served) -> None:
    plain = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(JAVA + BODY + plain % len(BODY) + BODY)
        assert rest(connection).count(b'"completion_tokens":2') == 2


@pytest.mark.parametrize("path", ["/live", "/health", "/metrics", "/v1/models", "/v1/models/tiny"])
def test_head_answers_as_get_does_without_a_body(server: Served, path: str) -> None:
    got, head = server.http.get(path), server.http.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_a_page_that_calls_this_machine_by_its_own_name_is_refused(server: Served, host: str) -> None:
    for path in ("/v1/models", "/health/", PATH):
        got = server.http.get(path, headers={"host": host})
        assert got.status_code == 403, path
        assert got.json()["error"]["code"] == "unknown_host"
    assert server.http.get("/live", headers={"host": host}).status_code == 200  # it has no secret


HEADS = {
    "two hosts": (b"Host: localhost\r\nHost: evil.example\r\n", b"400"),
    "no host": (b"", b"400"),
    "too long a body": (b"Host: localhost\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n", b"413"),
    "a packed body": (b"Host: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n", b"415"),
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_is_refused_before_its_body_comes(server: Served, kind: str) -> None:
    head, status = HEADS[kind]
    with server.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\n" + head + b"\r\n")
        assert rest(connection)[:12] == b"HTTP/1.1 " + status


@pytest.mark.parametrize(
    "prompt, offsets",
    [
        ([47249, 64], [0, 1]),  # b'\xf0\x9f', b'a': the half character is one of its own
        ([47249, 222, 64], [0, 0, 1]),  # a whole one
        ([64, 47249, 47249, 64], [0, 1, 2, 3]),
    ],
)
def test_text_offset_is_where_the_tokens_own_text_begins(server: Served, prompt: list[int], offsets: list[int]) -> None:
    (choice,) = server.post(prompt, echo=True, logprobs=0, max_tokens=0).json()["choices"]
    assert choice["logprobs"]["text_offset"] == offsets
    at = choice["logprobs"]["text_offset"][-1]
    assert choice["text"][at:] == "a"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_of_http_1_0_gets_no_chunks(server: Served, stream: bool) -> None:
    """A stream comes whole, and the connection ends with it, even if the client asks to keep that open."""
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 2, "stream": stream}).encode()
    head = b"POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(body)
    with server.connect() as connection:
        connection.sendall(head + body)
        headers, _, got = rest(connection).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers.lower()
    assert b"connection: close" in headers.lower()
    assert b"content-length: %d\r\n" % len(got) in headers
    text = got.decode()
    assert parsed(text)[-1] == "[DONE]" if stream else json.loads(text)["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("closed", ["stdin", "stdout", "stderr", "all"])
@pytest.mark.long
def test_a_daemon_without_streams_serves_and_ends_well(closed: str) -> None:
    numbers = {"stdin": [0], "stdout": [1], "stderr": [2], "all": [0, 1, 2]}[closed]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    closes = "; ".join(["import os", *[f"os.close({number})" for number in numbers]])
    command = ["-m", "nanoinfer", "serve", "--port", str(port), "--device", "cpu", "-m", "random:tiny"]
    code = f"{closes}; os.execv({sys.executable!r}, {[sys.executable, *command]!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def live() -> bool:
        assert process.poll() is None
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
                return b" 200 " in connection.recv(100)
        except OSError:
            return False

    until(live)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(("replicas", "sent"), [(1, signal.SIGSTOP), (2, signal.SIGSTOP), (1, signal.SIGKILL)])
@pytest.mark.long
def test_an_engine_that_hangs_is_killed(tmp_path: Path, replicas: int, sent: signal.Signals) -> None:
    """The last one ends the server with 1; of several, the others go on with its requests."""
    with command(tmp_path / "log", "--hang-timeout", "2", "--replicas", str(replicas)) as served:
        served.ready()
        first, *others = children(served.process.pid)
        os.kill(first, sent)
        body = {"model": "random:tiny", "prompt": "a", "max_tokens": 100, "ignore_eos": True, "seed": 3}
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(httpx.post, served.url + PATH, json=body, timeout=60) for _ in range(4)]
        if others:
            assert len({each.result().json()["choices"][0]["text"] for each in asked}) == 1
            assert children(served.process.pid) == others
            served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == (0 if others else 1)
        until(lambda: gone(first), 5)  # Linux kills it as its parent ends, a moment later
    told = (tmp_path / "log").read_text()
    assert ("nanoinfer: the engine has died" in told, "Traceback" in told) == (replicas == 1, False)


@pytest.mark.skipif(sys.platform != "linux", reason="the limits of Linux")
@pytest.mark.long
def test_more_idle_clients_than_descriptors_leave_the_log_short_and_health_alive(tmp_path: Path) -> None:
    """The usual soft limit of 1,024 is raised at the start; the hard one bounds --connections."""
    import resource

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    command = [sys.executable, "-m", "nanoinfer", "serve", "-m", "random:tiny", "--port", "0", "--device=cpu"]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=few)  # noqa: PLW1509
        assert process.stdout
        host, port = json.loads(process.stdout.readline())["url"].removeprefix("http://").split(":")
        until(lambda: json.loads(process.stdout.readline()).get("event") == "ready")
        clients = [socket.create_connection((host, int(port))) for _ in range(600)]
        with socket.create_connection((host, int(port))) as connection:
            connection.settimeout(20)
            connection.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b" 200 " in connection.recv(100)
        for client in clients:
            client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert (tmp_path / "errors").stat().st_size < 2000
    done = subprocess.run([*command, "--connections", "1000000000"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--connections must be at most" in done.stderr
