"""What is bounded before the application is called: nginx with the configuration that the book prints."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from nanoinfer import SamplingParams
from tests.serve.serving import (
    LONG,
    PATH,
    Hold,
    Served,
    connect,
    engine,
    library,
    proxied,
    request,
    rest,
    serving,
    until,
)

pytestmark = pytest.mark.skipif(not shutil.which("nginx"), reason="needs nginx")

GREEDY = SamplingParams(temperature=0, max_tokens=9)


def test_a_request_that_does_not_come_is_cut(server: Served, tmp_path: Path) -> None:
    parts = ["", "POST ", "GET /health HTTP/1.1\r\nHost: localhost\r\nA: "]
    parts.append(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{")
    with proxied(server.url, tmp_path, client_header_timeout="1s", client_body_timeout="1s") as url:
        connections = [connect(url) for _ in parts]
        for connection, part in zip(connections, parts, strict=True):
            connection.sendall(part.encode())
        assert {rest(connection)[9:12] for connection in connections} <= {b"", b"408"}
        assert httpx.get(f"{url}/v1/models").status_code == 200


def test_headers_of_88_kilobytes_are_refused(server: Served, tmp_path: Path) -> None:
    with proxied(server.url, tmp_path) as url, connect(url) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + b"X-n: a\r\n" * 11_000 + b"\r\n")
        assert rest(connection)[9:12] in (b"400", b"")  # nothing where the rest of it met a closed connection


def test_a_full_server_has_a_place_for_health(tmp_path: Path) -> None:
    llm = engine()
    hold = Hold(llm)
    with (
        serving(llm, connections=8) as server,
        proxied(server.url, tmp_path, limit_conn="api 3") as url,
        ThreadPoolExecutor(3) as pool,
    ):
        body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
        running = [pool.submit(httpx.post, url + PATH, json=body, timeout=60) for _ in range(3)]
        until(lambda: server.rows == 3)
        assert httpx.get(f"{url}/v1/models").status_code == 503
        assert [httpx.get(url + path).status_code for path in ("/live", "/health", "/metrics")] == [200] * 3
        hold.off()
        assert [answer.result().status_code for answer in running] == [200] * 3


def test_idle_connections_make_way(server: Served, tmp_path: Path) -> None:
    """As one CPU core's nginx has it: 64 connections, and 200 clients that send nothing."""
    with proxied(server.url, tmp_path, worker_connections="64") as url:
        clients = [connect(url) for _ in range(200)]
        assert httpx.get(f"{url}/health").status_code == 200
        for client in clients:
            client.close()


def test_a_client_that_does_not_read_is_cut(tmp_path: Path) -> None:
    big = {"model": "tiny", "prompt": [1] * 250, "echo": True, "logprobs": 20, "n": 4, "max_tokens": 3}  # 700 kB
    with (
        serving(engine(), stall_timeout=600) as server,
        proxied(server.url, tmp_path, send_timeout="1s") as url,
        connect(url, receives=4096) as slow,
    ):
        slow.sendall(request(big))
        until(lambda: server.ended)
        until(lambda: len(server.server.server_state.connections) == 1)  # this client's own
        server.idle()


def test_streams_pass_and_a_client_that_leaves_is_cancelled(tmp_path: Path) -> None:
    llm = engine()
    with serving(llm) as server, proxied(server.url, tmp_path) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as api:
            events = [*api.completions.create(model="tiny", prompt="a", max_tokens=9, temperature=0, stream=True)]
        assert "".join(event.choices[0].text for event in events) == library().generate("a", GREEDY)[0].text
        llm.pace(0.02)
        with connect(url) as leaver:
            leaver.sendall(request({"model": "tiny", "prompt": "a", "stream": True, **LONG}))
            assert leaver.recv(12) == b"HTTP/1.1 200"
        until(lambda: server.ended.get("cancelled"))
        llm.pace(0)
        server.idle()
