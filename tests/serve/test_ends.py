"""How a request ends: once, whatever happens; and nothing of it is left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from socket import socket
from threading import Event
from typing import Any

import pytest

from nanoinfer import AsyncLLM, SamplingParams
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.serve.app import App
from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.service import Service
from tests.serve.serving import LONG, Hold, Served, engine, library, serving, until, vanish

Held = tuple[Served, Hold]


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    """A server of one row whose engine can be stopped, and which reads prompts by four tokens."""
    llm = engine(max_batch=1, prefill_chunk=4)
    hold = Hold(llm)
    with serving(llm) as server:
        yield server, hold


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", [0, 2, 30], ids=["in the queue", "in its prompt", "while decoding"])
def test_a_client_that_leaves_takes_all_along(held: Held, steps: int, stream: bool, reset: bool) -> None:
    """All of its samples leave, and the others get their own tokens."""
    server, hold = held
    assert server.service.llm
    hold.on()
    server.records.clear()
    with ThreadPoolExecutor(1) as pool:
        if steps == 0:
            other = pool.submit(server.post, "b", seed=1, max_tokens=20)
            until(lambda: server.rows == 1)
        leaver = server.open(prompt=[5] * 100, stream=stream, n=2, **LONG)
        until(lambda: server.rows == (2 if steps else 3))
        if steps:
            server.service.llm.pace(0.02)
            hold.off()
            until(lambda: hold.steps >= steps)
        (vanish if reset else socket.close)(leaver)
        until(lambda: "cancelled" in [record.get("outcome") for record in server.records])
        server.service.llm.pace(0)
        hold.off()
        if steps:
            other = pool.submit(server.post, "b", seed=1, max_tokens=20)
        (expected,) = library().generate("b", SamplingParams(seed=1, max_tokens=20))
        assert other.result().json()["choices"][0]["text"] == expected.text
    server.idle()
    (left,) = [record for record in server.records if record.get("outcome") == "cancelled"]
    assert left["new_tokens"] < 200
    found = server.numbers()
    assert found["itl_seconds_count"] == found["new_tokens_total"] - found["ttft_seconds_count"]


class Boom(Exception):
    pass


def test_an_engine_that_dies_takes_all_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client hears of it once, running or waiting; no answer says that all is well."""
    llm = engine(max_batch=2)
    hold, forward, calls = Hold(llm), GPT2.forward, iter(range(10_000))

    def failing(self: GPT2, *args: Any) -> Any:
        if next(calls) == 4:
            raise Boom("of the GPU")
        return forward(self, *args)

    with serving(llm) as server, ThreadPoolExecutor(6) as pool:
        running = [pool.submit(server.events, f"{i}", **LONG) for i in range(2)]
        until(lambda: server.rows == 2)
        waiting = [pool.submit(server.post, stream=stream, **LONG) for stream in (True, False) * 2]
        until(lambda: server.rows == 6)
        monkeypatch.setattr(GPT2, "forward", failing)
        hold.off()
        for answer in running:
            *events, last = answer.result()
            assert last["error"]["code"] == "engine_dead"
            assert [event["choices"][0]["finish_reason"] for event in events] == [None] * len(events) != []
        for answer in waiting:
            assert answer.result().status_code == 500
            error = answer.result().json()["error"]
            assert (error["type"], error["code"]) == ("server_error", "engine_dead")
        until(lambda: server.http.get("/health").json()["status"] == "dead")
        assert server.http.get("/health").status_code == 503
        assert server.http.get("/live").status_code == 200
        server.idle()
        assert server.ended == {"failed": 6}
        assert [record["cause"] for record in server.records if record["event"] == "dead"] == ["Boom: of the GPU"]


@pytest.mark.parametrize("seconds", [0.3, 60])
def test_a_server_that_stops_takes_no_more_and_ends_what_runs(seconds: float) -> None:
    """With their answers where they end in time, and with an error where they do not."""
    llm = engine(max_batch=2)
    hold = Hold(llm)
    with serving(llm, drain_timeout=seconds) as server, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(server.post, stream=stream, seed=1, max_tokens=9) for stream in (True, False)]
        until(lambda: server.rows == 2)
        draining = asyncio.run_coroutine_threadsafe(server.service.drain(), server.loop)
        until(lambda: server.http.get("/health").json()["status"] == "draining")
        assert server.http.get("/health").status_code == 503
        assert server.http.get("/live").status_code == 200
        assert server.post().json()["error"]["code"] == "stopping"
        if seconds > 1:
            hold.off()
        streamed, whole = [answer.result() for answer in running]
        draining.result(60)
        hold.off()
        server.idle()
        if seconds > 1:
            assert streamed.text.endswith("data: [DONE]\n\n")
            assert whole.status_code == 200
        else:
            assert {streamed.json()["error"]["code"], whole.json()["error"]["code"]} == {"stopped"}
        assert server.ended == {"finished" if seconds > 1 else "failed": 2, "refused": 1}


def test_live_while_it_loads_and_ready_when_it_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, warms = Event(), Event()

    def load() -> AsyncLLM:
        assert loads.wait(60)
        llm = engine()
        monkeypatch.setattr(llm.llm, "warm_up", lambda on_capture: warms.wait(60))
        return llm

    with serving(load, ready=False) as server:
        for event, phase in ((loads, "loading"), (warms, "warming up")):
            until(lambda phase=phase: server.http.get("/health").json()["status"] == phase)  # type: ignore[misc]
            assert server.http.get("/live").status_code == 200
            health = server.http.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": phase, "ready_seconds": None})
            answer = server.post()
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
            assert "retry-after" in answer.headers
            assert server.numbers()["ready"] == 0
            assert server.http.get("/v1/models").status_code == 200
            event.set()
        until(lambda: server.http.get("/health").status_code == 200)
        assert server.http.get("/health").json()["ready_seconds"] > 0
        assert server.post(max_tokens=1).status_code == 200
        assert server.numbers()["ready"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_may_say_that_the_client_has_gone_while_it_sends_the_last_part(stream: bool) -> None:
    """As ASGI allows; uvicorn says it a moment later."""
    records = list[dict[str, Any]]()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [(b"host", b"localhost")],
        "http_version": "1.1",
    }
    fields = {"model": "tiny", "prompt": "a", "max_tokens": 2, "stream": stream}

    async def ask() -> None:
        messages, sent = [{"type": "http.request", "body": json.dumps(fields).encode()}], asyncio.Event()

        async def receive() -> dict[str, Any]:
            if not messages:
                await sent.wait()
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                sent.set()
                await asyncio.sleep(0.05)

        service = Service(engine(), ServeConfig(name="tiny"), log=records.append)
        app = App(service)
        async with app.router.lifespan_context(app):
            while service.phase != "ready":
                await asyncio.sleep(0.01)
            await app(scope, receive, send)

    asyncio.run(ask())
    assert [record["outcome"] for record in records if record["event"] == "request"] == ["finished"]
