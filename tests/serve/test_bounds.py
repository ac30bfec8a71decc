"""What a client could make large has a bound, and who is refused costs little and harms nobody."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nanoinfer.serve.connection import SPARE
from nanoinfer.text.tokenizer import Tokenizer
from tests.serve.serving import PATH, Hold, Served, engine, parsed, rest, serving, until

LONG = {"max_tokens": 200, "ignore_eos": True}


def test_a_full_queue_refuses_ahead_of_tokenizing_and_frees_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 rows may run and 2 wait. Of 20 at once 14 are told to come again, and then 6 are let in again."""
    llm = engine()
    hold, encoded, encode = Hold(llm), list[str](), Tokenizer.encode

    def counted(self: Tokenizer, text: str, **more: Any) -> list[int]:
        encoded.append(text)
        return encode(self, text, **more)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    with serving(llm, queue=2) as server, ThreadPoolExecutor(20) as pool:
        for _ in range(2):
            hold.on()
            encoded.clear()
            answers = [pool.submit(server.post, f"text {i}", max_tokens=2) for i in range(20)]
            until(lambda: server.service.books.ended["refused"] % 14 == 0 and server.service.rows == 6)
            assert server.http.get("/health").status_code == 200
            assert server.http.get("/live").status_code == 200
            assert server.http.get("/metrics").status_code == 200
            hold.off()
            found = [answer.result() for answer in answers]
            assert sorted(answer.status_code for answer in found) == [200] * 6 + [429] * 14
            refused = next(answer for answer in found if answer.status_code == 429)
            assert refused.json()["error"]["code"] == "queue_full"
            assert int(refused.headers["retry-after"]) >= 1
            assert len(encoded) == 6
            server.idle()
        assert server.service.books.ended == {"finished": 12, "refused": 28, "cancelled": 0, "failed": 0}


def test_all_rows_of_a_request_are_admitted_or_none() -> None:
    llm = engine()
    hold = Hold(llm)
    with serving(llm, queue=1) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.post, n=3, max_tokens=1)
        until(lambda: server.service.rows == 3)
        assert server.post(n=3, max_tokens=1).status_code == 429
        assert server.service.rows == 3
        never = server.post(n=6)
        assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
        hold.off()
        assert first.result().status_code == 200
        assert server.post(n=5, max_tokens=1).status_code == 200
        server.idle()


def test_bounds_of_one_request() -> None:
    settings = {"max_body": 2000, "max_prompt_tokens": 8, "max_tokens": 9, "max_rows": 3, "max_stops": 1}
    with serving(engine(), **settings) as server:
        for fields, status, sentence in (
            ({"prompt": "a" * 3000}, 413, "more than 2,000 bytes"),
            ({"prompt": [1] * 9}, 400, "prompt has 9 tokens, and may have 8 here"),
            ({"prompt": "a b c d e f g h i"}, 400, "prompt has 9 tokens"),
            ({"max_tokens": 10}, 400, "max_tokens must be at most 9 here"),
            ({"prompt": ["a", "b"], "n": 2}, 400, "more than the 3 completions"),
            ({"stop": ["a", "b"]}, 400, "at most 1 strings"),
            ({"prompt": "a b c d e f g h"}, 200, "text_completion"),
        ):
            answer = server.post(**fields)
            assert answer.status_code == status, answer.text
            assert sentence in answer.text
        server.idle()


@pytest.mark.parametrize("running", [False, True])
def test_a_request_may_take_so_long(running: bool) -> None:
    """An error where nothing was sent yet, and an event where something was."""
    llm = engine(max_batch=1)
    hold = Hold(llm)
    with serving(llm, request_timeout=0.3) as server:
        if not running:
            whole, streamed = server.post(**LONG), server.post(stream=True, **LONG)
            for answer in (whole, streamed):
                assert answer.status_code == 504
                assert answer.json()["error"]["code"] == "timeout"
                assert answer.json()["error"]["type"] == "server_error"
        else:
            llm.pace(0.05)
            hold.off()
            events = parsed(server.post(stream=True, **LONG).text)
            assert len(events) > 1
            assert events[-1]["error"]["code"] == "timeout"
            assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
        hold.off()
        server.idle()
        assert server.service.books.ended["failed"] == (1 if running else 2)


def test_connections_beyond_the_bound() -> None:
    """They may still ask for health and metrics, and are told why they get no completion."""
    with serving(engine(), connections=3) as server:
        held = [server.connect() for _ in range(3)]
        until(lambda: len(server.server.server_state.connections) == 3)
        answer = server.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_connections")
        assert server.http.get("/v1/models").status_code == 503
        for path in ("/live", "/health", "/metrics"):
            assert server.http.get(path).status_code == 200
        more = [server.connect() for _ in range(SPARE)]
        until(lambda: len(server.server.server_state.connections) == 3 + SPARE)
        cut = [server.connect() for _ in range(3)]
        assert [rest(one) for one in cut] == [b""] * 3
        for one in (*held, *more, *cut):
            one.close()
        until(lambda: len(server.server.server_state.connections) <= 2)
        assert server.post(max_tokens=1).status_code == 200
        server.idle()


@pytest.mark.parametrize("sent", [b"", b"POST ", b"GET /health HTTP/1.1\r\nHost: x\r\nA: "])
def test_a_request_that_does_not_come_is_cut(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoinfer.serve.connection.GRACE", 0.0)
    with serving(engine(), body_timeout=0.2) as server, server.connect() as connection:
        connection.sendall(sent)
        assert rest(connection) == b""
        assert server.post(max_tokens=1).status_code == 200


def test_a_body_that_does_not_come_is_told_so() -> None:
    with serving(engine(), body_timeout=0.2) as server, server.connect() as connection:
        connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        answer = rest(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"body_timeout" in answer
        server.idle()


def test_headers_have_an_end(server: Served) -> None:
    with server.connect() as connection:
        try:
            connection.sendall(b"GET /live HTTP/1.1\r\n" + b"A: b\r\n" * 100_000)
        except OSError:
            pass
        assert b"200" not in rest(connection)


@pytest.mark.parametrize("garbage", [b"\x00\xff" * 50, b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" * 9])
def test_what_is_no_http(server: Served, garbage: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        answer = rest(connection)
        assert answer.startswith(b"HTTP/1.1 400 ") or answer == b""
    assert server.http.get("/live").status_code == 200


BIG = {"prompt": [1] * 250, "echo": True, "logprobs": 20, "n": 4, "max_tokens": 3}  # some 700 kB of answer


@pytest.mark.parametrize("stream", [False, True])
def test_who_does_not_read_is_cut_and_slows_nobody(stream: bool) -> None:
    """What waits for it is bounded; the engine is done with it, and others have their answers meanwhile."""
    llm = engine()
    hold = Hold(llm)
    with serving(llm, stall_timeout=1.5) as server:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = server.url.removeprefix("http://").rsplit(":", 1)
        slow.connect((host, int(port)))
        fields = {"model": "tiny", "stream": stream, **BIG}
        body = json.dumps(fields).encode()
        slow.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: server.service.rows == 4)
        mine = [one for one in server.server.server_state.connections if one.client == slow.getsockname()]
        (transport,) = [one.transport for one in mine]
        hold.off()
        waited: list[int] = []
        until(lambda: waited.append(transport.get_write_buffer_size()) or waited[-1] > 0)
        assert server.post(max_tokens=3, seed=1).status_code == 200

        def gone() -> bool:
            waited.append(transport.get_write_buffer_size())
            return mine[0] not in server.server.server_state.connections

        until(gone)
        slow.close()
        server.idle()
        if stream:
            assert max(waited) < 400_000
            assert server.service.books.ended["cancelled"] == 1
