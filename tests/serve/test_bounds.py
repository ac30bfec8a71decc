"""What a client could make large has a bound, and a refused client costs little and harms no other."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.run import bind
from nanoinfer.text.tokenizer import Tokenizer
from tests.serve.serving import LONG, PATH, Hold, Served, engine, parsed, rest, serving, until

Held = tuple[Served, Hold]


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    """A server on which 4 rows may run and 2 wait, and whose engine can be stopped."""
    llm = engine()
    hold = Hold(llm)
    with serving(llm, queue=2) as server:
        yield server, hold


def test_a_full_queue_refuses_ahead_of_tokenizing(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """And frees its places: of 20 at once 14 are told to come again, and then 6 are let in again."""
    server, hold = held
    encoded, encode = list[str](), Tokenizer.encode

    def counted(self: Tokenizer, text: str, **more: Any) -> list[int]:
        encoded.append(text)
        return encode(self, text, **more)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    with ThreadPoolExecutor(20) as pool:
        for turn in (1, 2):
            hold.on()
            encoded.clear()
            answers = [pool.submit(server.post, f"text {i}", max_tokens=2) for i in range(20)]
            until(lambda turn=turn: server.ended.get("refused") == 14 * turn and server.rows == 6)  # type: ignore[misc]
            assert [server.http.get(path).status_code for path in ("/health", "/live", "/metrics")] == [200] * 3
            hold.off()
            found = [answer.result() for answer in answers]
            assert sorted(answer.status_code for answer in found) == [200] * 6 + [429] * 14
            refused = next(answer for answer in found if answer.status_code == 429)
            assert refused.json()["error"]["code"] == "queue_full"
            assert int(refused.headers["retry-after"]) >= 1
            assert len(encoded) == 6
            server.idle()
    assert server.ended == {"finished": 12, "refused": 28}


def test_all_rows_of_a_request_are_admitted_or_none(held: Held) -> None:
    server, hold = held
    hold.on()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.post, n=4, max_tokens=1)
        until(lambda: server.rows == 4)
        assert server.post(n=3, max_tokens=1).status_code == 429
        assert server.rows == 4
        never = server.post(n=7)
        assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
        hold.off()
        assert first.result().status_code == 200
    server.idle()
    assert server.post(n=6, max_tokens=1).status_code == 200


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
            ({"prompt": "a b c d e f g h", "ignore_eos": True}, 200, '"completion_tokens":9'),
        ):
            answer = server.post(**fields)
            assert answer.status_code == status, answer.text
            assert sentence in answer.text
        server.idle()


def test_a_request_may_take_so_long() -> None:
    """An error where nothing was sent yet, and an event where something was."""
    llm = engine(max_batch=1)
    hold = Hold(llm)
    with serving(llm, request_timeout=0.3) as server:
        for answer in (server.post(**LONG), server.post(stream=True, **LONG)):
            assert answer.status_code == 504
            assert (answer.json()["error"]["code"], answer.json()["error"]["type"]) == ("timeout", "server_error")
        llm.pace(0.05)
        hold.off()
        *events, last = parsed(server.post(stream=True, **LONG).text)
        assert last["error"]["code"] == "timeout"
        assert [event["choices"][0]["finish_reason"] for event in events] == [None] * len(events) != []
        server.idle()
        assert server.ended == {"failed": 3}


def test_connections_beyond_the_bound() -> None:
    """uvicorn answers them; what keeps a place for health is a proxy."""
    with serving(engine(), connections=3) as server:
        held = [server.connect() for _ in range(3)]
        assert server.post().status_code == 503
        for one in held:
            one.close()
        until(lambda: server.post(max_tokens=1).status_code == 200)


def test_a_body_that_does_not_come_is_refused() -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{"
    with serving(engine(), body_timeout=0.2) as server:
        with server.connect() as connection:
            connection.sendall(head.encode())
            told = rest(connection)
        assert told.startswith(b"HTTP/1.1 408 ")
        assert b"body_timeout" in told
        assert server.post(max_tokens=1).status_code == 200
        server.idle()


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\xff" * 50, b"GET\r\n\r\n", b"\x16\x03\x01" * 9,
     b"GET /live HTTP/1.1\r\n" + b"A: b\r\n" * 100_000],
    ids=lambda garbage: repr(garbage[:12]),
)  # fmt: skip
def test_what_is_no_http_or_has_headers_without_an_end(server: Served, garbage: bytes) -> None:
    with server.connect() as connection:
        with suppress(OSError):
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
        answer = rest(connection)
        assert answer.startswith(b"HTTP/1.1 400 ") or answer == b""
    assert server.http.get("/live").status_code == 200


def test_a_client_that_does_not_read_is_cut_and_slows_no_other() -> None:
    """A stream waits for its reader, so its request ends with the cut; a whole answer is written by then."""
    llm = engine()
    hold = Hold(llm)
    big: dict[str, Any] = {"prompt": [1] * 250, "echo": True, "logprobs": 20, "n": 4, "max_tokens": 3}  # 700 kB
    with serving(llm, stall_timeout=0.5) as server:
        slow = [server.open(receives=4096, stream=stream, **big) for stream in (False, True)]
        until(lambda: server.rows == 8)
        hold.off()
        assert server.post(max_tokens=3).status_code == 200
        until(lambda: len(server.server.server_state.connections) == 1)  # this client's own
        server.idle()
        assert server.ended == {"finished": 2, "cancelled": 1}
        for connection in slow:
            assert len(rest(connection)) < 400_000


def test_what_is_written_goes_out_at_once() -> None:
    """A connection that waits for acknowledgements holds a stream's tokens back, and an answer behind its headers."""
    config = ServeConfig(port=0)
    with bind(config) as listening, socket.create_connection(listening.getsockname()), listening.accept()[0] as found:
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
