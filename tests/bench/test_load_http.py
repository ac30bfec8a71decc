"""`bench load` over HTTP: what servers say, whole or broken, and what the client counts of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from nanobench.load.clients import Done
from nanobench.load.drive import Ask, Reply
from nanobench.load.http_client import Endpoint, Raw, Reader
from nanobench.load.records import Limits, LoadRun, Plan, counted
from nanobench.load.targets import Server

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
Script = list[bytes | None]  # what a server writes; None: it cuts the connection


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(text: str = "", finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish, **more}
    return chunk(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")


def usage(tokens: int) -> bytes:
    return chunk(b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\n' % tokens)


DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
REFUSAL = b'{"error": {"message": "the queue is full", "type": "rate_limit_exceeded", "code": 429}}'
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: %d\r\n\r\n" % len(REFUSAL) + REFUSAL
WHOLE: Script = [HEAD, event(""), event("abc"), event("def"), event("", "length"), usage(6), DONE]


@pytest.mark.parametrize(
    "parts, tokens, times, by",
    [
        ([HEAD + event(""), event("abc"), event("def"), event("", "length"), usage(6) + DONE], 6, (2.0, 3.0), "usage"),
        (
            [HEAD + event("", token_ids=[]), event("", token_ids=[7]), event("ab", "stop", token_ids=[8, 9]),
             usage(99) + DONE], 3, (2.0, 3.0), "ids",
        ),
        ([HEAD + event("a"), event("b"), event("c", "stop") + usage(2) + DONE], 2, (1.0, 2.0), "usage"),
        (
            [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
             b': hello\r\ndata: {"choices": [{"text": "a", "finish_reason": "stop"}]}\r\n\r\ndata: [DONE]'],
            1, (2.0,), "pieces",
        ),
    ],
    ids=["three tokens a piece", "ids", "text held back", "until the connection ends"],
)  # fmt: skip
def test_tokens_and_their_times(parts: list[bytes], tokens: int, times: tuple[float, ...], by: Any) -> None:
    """Of an answer whose parts come a second apart; the last one is its end."""
    timed = tuple((1.0 + at, part) for at, part in enumerate(parts))
    assert Reader().reply(Raw(timed, "")) == Reply("ok", "", tokens, times, float(len(parts)), by)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_bytes_may_be_cut_anywhere(size: int) -> None:
    data = HEAD + event("añ", token_ids=[1]) + event("b", "length", token_ids=[2, 3]) + DONE
    parts = tuple((float(at), data[at : at + size]) for at in range(0, len(data), size))
    found = Reader().reply(Raw(parts, ""))
    assert (found.outcome, found.tokens, len(found.times)) == ("ok", 3, 2)


@pytest.mark.parametrize(
    "data, outcome, reason",
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno", "refused", "HTTP 400"),
        (b'HTTP/1.1 500 Oh\r\nContent-Length: 16\r\n\r\n{"error": "why"}', "failed", "HTTP 500"),
        (HEAD + event("a") + chunk(b"data: {{{\n\n") + DONE, "failed", "garbage: JSONDecodeError"),
        (HEAD + event("a") + b"zz\r\nno chunk", "failed", "garbage"), (HEAD + event("a", "stop"), "failed", "cut"),
        (HEAD + event("a") + DONE, "failed", "no finish_reason"),
        (HEAD + event("", "stop") + usage(1) + DONE, "failed", "no token"),
    ],
)  # fmt: skip
def test_what_is_no_answer(data: bytes, outcome: str, reason: str) -> None:
    found = Reader().reply(Raw(((1.0, data),), ""))
    assert (found.outcome, found.reason[: len(reason)]) == (outcome, reason)


def test_what_is_sent() -> None:
    data = Endpoint.of("http://localhost:8123/v1/", "key").request({"prompt": [1, 2]})
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/completions HTTP/1.1"
    assert {"Host: localhost:8123", "Authorization: Bearer key", f"Content-Length: {len(body)}"} <= set(lines)
    assert json.loads(body) == {"prompt": [1, 2]}
    with pytest.raises(ValueError, match="api-key"):
        Endpoint.of("http://a", "a\r\nb")
    found = [(e.host, e.port, e.path, e.tls) for e in map(Endpoint.of, ("https://a", "http://a:7/x/v1"))]
    assert found == [("a", 443, "/v1/completions", True), ("a", 7, "/x/v1/completions", False)]
    for url in ("localhost:8000", "ftp://a", "http://", "http://a:99999"):
        with pytest.raises(ValueError, match="url must be like"):
            Endpoint.of(url)


def loaded(script: Callable[[int], Script], count: int, *, timeout: float = 60, clients: int = 1) -> LoadRun:
    """`count` requests at once, by so many processes, to a server on the loopback.

    script: what it writes, of the number of the request.
    """
    bodies: list[dict[str, Any]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        bodies.append(json.loads(await reader.readexactly(length)))
        parts = script(bodies[-1]["prompt"][0])
        for part in parts:
            if part is None:
                writer.transport.abort()
                return
            writer.write(part)
            await writer.drain()
        if parts[-1] == HEAD:
            await reader.read()  # it stalls until the client goes away
        writer.close()

    async def main() -> list[Done]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as fake:
            url = f"http://127.0.0.1:{fake.sockets[0].getsockname()[1]}"
            server = Server("fake", Endpoint.of(url), "m", clients, timeout, {"x": 1})
            return await asyncio.to_thread(server.run, asks, None)

    asks = tuple(Ask(number, 0.0, (number, 1), 6) for number in range(count))
    done = asyncio.run(main())
    assert sorted((body["prompt"][0], body["x"]) for body in bodies) == [(number, 1) for number in range(count)]
    return counted("fake", Plan(how="at once", requests=count), asks, done, Limits(ttft_s=600, itl_s=600))


def test_every_way_to_answer_is_counted() -> None:
    scripts: list[Script] = [
        WHOLE, [REFUSED], [HEAD, event("a"), None],
        [HEAD, event("abc"), chunk(b'data: {"error": "e"}\n\n'), DONE], [b"\x00\x01 no http\r\n\r\n"], [None],
    ]  # fmt: skip
    run = loaded(lambda number: scripts[number % 6], 24)
    assert (run.attempted, run.ok, run.refused, run.failed, run.cancelled) == (24, 4, 4, 16, 0)
    assert (run.new_tokens, run.counted_by, run.good) == (24, {"usage": 4}, 4)
    assert run.reasons["refused: HTTP 429: rate_limit_exceeded"] == 4
    assert run.reasons["failed: error event: e"] == 4


def test_a_server_that_stalls() -> None:
    run = loaded(lambda number: [HEAD] if number == 1 else WHOLE, 3, timeout=0.5)
    assert (run.ok, run.reasons) == (2, {"failed: no end within 0.5 s": 1})


def test_nobody_listens() -> None:
    [done] = Server("gone", Endpoint.of("http://127.0.0.1:1"), "m", 1, 5.0).run([Ask(0, 0.0, (1,), 1)], None)
    assert done.answers[0].reply == Reply("failed", "no connection: ConnectionRefusedError")


def test_several_processes_share_the_requests() -> None:
    run = loaded(lambda number: WHOLE, 10, clients=2)
    assert (run.ok, len(run.client_cpu)) == (10, 2)
