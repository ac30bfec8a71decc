"""Clients that others wrote, OpenAI's own, and servers that others wrote, with the same application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from nanoinfer import SamplingParams
from tests.serve.serving import PATH, Served, connect, engine, library, request, serving_by_hypercorn, until

ARGUMENTS: dict[str, Any] = {"model": "tiny", "prompt": ["Once upon", "The fox"], "max_tokens": 8, "seed": 3}


@pytest.fixture(scope="module")
def hypercorn() -> Iterator[str]:
    pytest.importorskip("hypercorn")
    llm = engine()
    llm.pace(0.005)
    with serving_by_hypercorn(llm, body_timeout=0.3, max_body=10_000) as url:
        yield url


@pytest.fixture(params=["uvicorn", "hypercorn"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "hypercorn":
        return str(request.getfixturevalue("hypercorn"))
    server: Served = request.getfixturevalue("server")
    return server.url


def test_openais_client(url: str) -> None:
    done = library().generate(ARGUMENTS["prompt"], SamplingParams(max_tokens=8, seed=3))
    expected = [one.text for one in done]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as api:
        assert [model.id for model in api.models.list()] == ["tiny"]
        assert api.models.retrieve("tiny").id == "tiny"
        whole = api.completions.create(**ARGUMENTS, logprobs=1, extra_body={"top_k": 0})
        assert [choice.text for choice in whole.choices] == expected
        assert whole.choices[0].logprobs
        assert len(whole.choices[0].logprobs.tokens or ()) == 8
        texts, usage = ["", ""], None
        for event in api.completions.create(**ARGUMENTS, stream=True, stream_options={"include_usage": True}):
            usage = event.usage
            for choice in event.choices:
                texts[choice.index] += choice.text
        assert (texts, usage) == (expected, whole.usage)


def test_limits_and_disconnects_are_the_applications_under_any_server(hypercorn: str) -> None:
    def count(name: str) -> float:
        lines = httpx.get(f"{hypercorn}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if name in line and not line.startswith("#"))

    body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
    before = count('"finished"')
    assert httpx.post(hypercorn + PATH, json=body | {"user": "x" * 10_000}).status_code == 413
    assert httpx.get(f"{hypercorn}/v1/models", headers={"host": "evil.example"}).status_code == 403
    for stream in (False, True) * 5:
        assert httpx.post(hypercorn + PATH, json=body | {"stream": stream}).status_code == 200
    with connect(hypercorn) as late:
        late.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        assert late.recv(12) == b"HTTP/1.1 408"
    assert count('"cancelled"') == 0
    with connect(hypercorn) as leaver:
        leaver.sendall(request(body | {"max_tokens": 250, "ignore_eos": True, "n": 4}))
        until(lambda: count("rows_running ") == 4)
    until(lambda: count("rows_running ") == 0)
    assert [count('"cancelled"'), count('"finished"') - before] == [1, 10]
