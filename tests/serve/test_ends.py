"""How a request ends: once, whatever happens; and what is left of it: nothing."""

from __future__ import annotations

import asyncio
import json
import struct
from concurrent.futures import ThreadPoolExecutor
from socket import SO_LINGER, SOL_SOCKET, socket
from threading import Event, Thread
from typing import Any

import pytest

from nanoinfer import AsyncLLM, SamplingParams
from nanoinfer.model.gpt2 import GPT2
from tests.serve.serving import Hold, engine, library, parsed, rest, serving, until

LONG = {"max_tokens": 200, "ignore_eos": True}


def vanish(connection: socket) -> None:
    """Without a word: the other side gets a reset."""
    connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", ["queue", "prompt", "decode"])
def test_a_client_that_goes_away_is_cancelled(place: str, stream: bool, reset: bool) -> None:
    """And the others get their own tokens."""
    llm = engine(max_batch=1 if place == "queue" else 2, prefill_chunk=4)
    hold = Hold(llm)
    with serving(llm) as server, ThreadPoolExecutor(1) as pool:
        if place == "queue":
            other = pool.submit(server.post, "b", seed=1, max_tokens=20)
            until(lambda: server.service.rows == 1)
        leaver = server.open(prompt=[5] * 100, stream=stream, n=1, **LONG)
        until(lambda: server.service.rows == (2 if place == "queue" else 1))
        if place != "queue":
            llm.pace(0.02)
            hold.off()
            want = 2 if place == "prompt" else 30
            until(lambda: hold.steps >= want)
        (vanish if reset else socket.close)(leaver)
        until(lambda: server.service.books.ended["cancelled"] == 1)
        llm.pace(0)
        hold.off()
        if place != "queue":
            other = pool.submit(server.post, "b", seed=1, max_tokens=20)
        (expected,) = library().generate("b", SamplingParams(seed=1, max_tokens=20))
        assert other.result().json()["choices"][0]["text"] == expected.text
        server.idle()
        assert llm.stats.new_tokens < 20 + 200
        ended = [record for record in server.records if record["event"] == "request"]
        assert sorted(record["outcome"] for record in ended) == ["cancelled", "finished"]


def test_a_client_that_goes_takes_all_of_its_samples_along() -> None:
    llm = engine(max_batch=2)
    with serving(llm) as server:
        llm.pace(0.01)
        leaver = server.open(n=4, seed=1, stream=True, max_tokens=200)
        until(lambda: llm.stats.new_tokens >= 100)
        leaver.close()
        server.idle()
        assert server.service.books.ended["cancelled"] == 1


class Boom(Exception):
    pass


def fail_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    forward, calls = GPT2.forward, iter(range(10_000))

    def failing(self: GPT2, *args: Any) -> Any:
        if next(calls) == step:
            raise Boom("of the GPU")
        return forward(self, *args)

    monkeypatch.setattr(GPT2, "forward", failing)


def test_an_engine_that_dies_takes_all_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client hears of it once, read or not, running or waiting; nobody is told that all is well."""
    llm = engine(max_batch=2)
    hold = Hold(llm)
    with serving(llm) as server, ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(server.post, f"{i}", stream=True, **LONG) for i in range(2)]
        until(lambda: server.service.rows == 2)
        others = [pool.submit(server.post, f"{i}", stream=stream, **LONG) for i in range(2) for stream in (True, False)]
        until(lambda: server.service.rows == 6)
        fail_at(monkeypatch, 4)
        hold.off()
        for answer in streams:
            assert answer.result().status_code == 200
            *events, last = parsed(answer.result().text)
            assert events
            assert last["error"]["code"] == "engine_dead"
            assert all(event["choices"][0]["finish_reason"] is None for event in events)
        for answer in others:
            assert answer.result().status_code == 500
            assert answer.result().json()["error"]["code"] == "engine_dead"
        until(server.service.over.is_set)
        assert isinstance(server.service.cause, Boom)
        health = server.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "dead")
        assert server.http.get("/live").status_code == 200
        late = server.post()
        assert (late.status_code, late.json()["error"]["type"]) == (500, "server_error")
        until(server.balanced)
        assert server.service.books.ended["failed"] == 6
        assert [r["cause"] for r in server.records if r["event"] == "dead"] == ["Boom: of the GPU"]


@pytest.mark.parametrize("seconds", [0.3, 60])
def test_a_server_that_stops_takes_no_more_and_ends_what_runs(seconds: float) -> None:
    llm = engine(max_batch=2)
    hold = Hold(llm)
    with serving(llm, drain_timeout=seconds) as server, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(server.post, stream=stream, seed=1, max_tokens=9) for stream in (True, False)]
        until(lambda: server.service.rows == 2)
        (loop,) = llm._outlets
        draining = asyncio.run_coroutine_threadsafe(server.service.drain(), loop)
        until(lambda: server.service.phase == "draining")
        assert server.post().json()["error"]["code"] == "stopping"
        assert server.http.get("/health").status_code == 503
        assert server.http.get("/live").status_code == 200
        if seconds > 1:
            hold.off()
            assert [answer.result().status_code for answer in running] == [200, 200]
            assert parsed(running[0].result().text)[-1] == "[DONE]"
        else:
            assert {answer.result().json()["error"]["code"] for answer in running} == {"stopped"}
        draining.result(60)
        assert server.service.over.is_set()
        hold.off()
        server.idle()
        assert server.service.books.ended["finished" if seconds > 1 else "failed"] == 2


def test_live_while_it_loads_and_ready_when_it_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, warms = Event(), Event()

    def load() -> AsyncLLM:
        assert loads.wait(60)
        llm = engine()
        monkeypatch.setattr(llm.llm, "warm_up", lambda on_capture: warms.wait(60))
        return llm

    with serving(load, ready=False) as server:
        for event, phase in ((loads, "loading"), (warms, "warming up")):
            until(lambda phase=phase: server.service.phase == phase)  # type: ignore[misc]
            assert server.http.get("/live").status_code == 200
            health = server.http.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": phase, "ready_seconds": None})
            answer = server.post()
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
            assert "retry-after" in answer.headers
            assert b"nanoinfer_ready 0.0" in server.http.get("/metrics").content
            assert server.http.get("/v1/models").status_code == 200
            event.set()
        until(lambda: server.http.get("/health").status_code == 200)
        assert server.http.get("/health").json()["ready_seconds"] > 0
        assert server.post(max_tokens=1).status_code == 200
        (ready,) = [record for record in server.records if record["event"] == "ready"]
        assert ready["seconds"] > 0
        server.idle()


def test_a_model_that_cannot_be_loaded_is_the_end() -> None:
    def load() -> AsyncLLM:
        raise ValueError("model must be something else")

    with serving(load, ready=False) as server:
        until(server.service.over.is_set)
        assert server.http.get("/health").json()["status"] == "dead"
        assert repr(server.service.cause) == "ValueError('model must be something else')"


def test_clients_get_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 at once, whole and streamed, some of which leave; each that stays has what it would have had alone."""
    llm, prompts = engine(max_batch=4), [f"I am number {i}" for i in range(32)]
    params = {"max_tokens": 12, "ignore_eos": True, "seed": 7}
    expected = library().generate(prompts, SamplingParams(**params))  # type: ignore[arg-type]
    with serving(llm) as server, ThreadPoolExecutor(32) as pool:
        leavers = [server.open(prompt=f"leaver {i}", stream=i % 2 == 0, **LONG) for i in range(8)]
        leaving = Thread(target=lambda: [vanish(one) for one in leavers])
        answers = [pool.submit(server.post, prompt, stream=i % 2 == 0, **params) for i, prompt in enumerate(prompts)]
        leaving.start()
        for i, (answer, one) in enumerate(zip(answers, expected, strict=True)):
            text = answer.result().text
            choices = [event["choices"][0] for event in (parsed(text)[:-1] if i % 2 == 0 else [json.loads(text)])]
            assert "".join(choice["text"] for choice in choices) == one.text
        leaving.join()
        server.idle()
        assert server.service.books.ended["finished"] == 32


def test_a_connection_serves_one_request_after_another() -> None:
    """Also two that were sent at once."""
    with serving(engine()) as server:
        with server.open(max_tokens=2, seed=1) as connection:
            body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 2, "seed": 1}).encode()
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body)
            answer = rest(connection)
        assert answer.count(b"HTTP/1.1 200 OK") == 2
        server.idle()
