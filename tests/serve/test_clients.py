"""Clients that others wrote: OpenAI's own."""

from __future__ import annotations

from typing import Any

import openai

from nanoinfer import SamplingParams
from tests.serve.serving import Served, library

ARGUMENTS: dict[str, Any] = {"model": "tiny", "prompt": ["Once upon", "The fox"], "max_tokens": 8, "seed": 3}


def client(server: Served, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def test_openais_client(server: Served) -> None:
    done = library().generate(ARGUMENTS["prompt"], SamplingParams(max_tokens=8, seed=3))
    expected = [one.text for one in done]
    with client(server) as api:
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
