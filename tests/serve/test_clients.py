"""Clients that others wrote: OpenAI's own, and an evaluation harness's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from nanoinfer import SamplingParams
from tests.serve.serving import Served, engine, library, serving

ARGUMENTS: dict[str, Any] = {"model": "tiny", "prompt": ["Once upon", "The fox"], "max_tokens": 8, "seed": 3}


def expected() -> list[str]:
    return [one.text for one in library().generate(ARGUMENTS["prompt"], SamplingParams(max_tokens=8, seed=3))]


def client(server: Served, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", **{"api_key": "none", "max_retries": 0, **more})


def test_openais_client(server: Served) -> None:
    with client(server) as api:
        assert [model.id for model in api.models.list()] == ["tiny"]
        assert api.models.retrieve("tiny").id == "tiny"
        done = api.completions.create(**ARGUMENTS, logprobs=1, extra_body={"top_k": 0})
        assert [choice.text for choice in done.choices] == expected()
        assert done.usage
        assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
        assert done.choices[0].logprobs
        assert len(done.choices[0].logprobs.tokens or ()) == 8
        texts, usage = ["", ""], None
        for event in api.completions.create(**ARGUMENTS, stream=True, stream_options={"include_usage": True}):
            usage = event.usage
            for choice in event.choices:
                texts[choice.index] += choice.text
        assert texts == expected()
        assert usage == done.usage


def test_openais_client_in_an_event_loop(server: Served) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as api:
            done, stream = await asyncio.gather(
                api.completions.create(**ARGUMENTS), api.completions.create(**ARGUMENTS, stream=True)
            )
            assert [choice.text for choice in done.choices] == expected()
            texts = ["", ""]
            async for event in stream:
                for choice in event.choices:
                    texts[choice.index] += choice.text
            assert texts == expected()

    asyncio.run(main())


def test_errors_are_the_clients_own(server: Served) -> None:
    with client(server) as api:
        with pytest.raises(openai.NotFoundError, match="there is no model"):
            api.completions.create(model="other", prompt="a")
        with pytest.raises(openai.BadRequestError, match="suffix is not supported") as bad:
            api.completions.create(model="tiny", prompt="a", suffix="b")
        assert (bad.value.param, bad.value.type) == ("suffix", "invalid_request_error")
        with pytest.raises(openai.NotFoundError, match="no chat format"):
            api.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}])
    with serving(engine(), api_key="right", request_timeout=0.2) as locked:
        with client(locked, api_key="wrong") as api, pytest.raises(openai.AuthenticationError):
            api.models.list()
        assert locked.service.llm
        locked.service.llm.pace(0.05)
        with client(locked, api_key="right") as api:
            with pytest.raises(openai.InternalServerError, match="took more than"):
                api.completions.create(model="tiny", prompt="a", max_tokens=200)
            with pytest.raises(openai.APIError, match="took more than"):
                list(api.completions.create(model="tiny", prompt="a", max_tokens=200, stream=True))


@pytest.mark.long
@pytest.mark.parametrize("as_text", [True, False])
def test_an_evaluation_harness(server: Served, as_text: bool) -> None:
    """lm-eval's client for completions: its scores are the library's logprobs of the prompt."""
    pytest.importorskip("lm_eval", reason="needs lm-eval: pip install -e '.[harness]'")
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    class Harness(LocalCompletionsAPI):  # type: ignore[misc]
        """With this project's tokenizer; by itself it would fetch one from the hub."""

        @property
        def eot_token_id(self) -> int:
            return 50_256

        def tok_encode(self, string: str, **_: Any) -> list[int]:
            return library().tokenizer.encode(string)

        def decode_batch(self, tokens: list[list[int]]) -> list[str]:
            return [library().tokenizer.decode(ids) for ids in tokens]

    api = Harness(
        base_url=f"{server.url}/v1/completions", model="tiny", tokenizer_backend=None,
        num_concurrent=1, max_length=256, batch_size=1,
    )  # fmt: skip
    api.tokenizer = library().tokenizer  # it asks only whether there is one
    api.tokenized_requests = not as_text
    pairs = [("Once upon a", " time there was"), ("The fox", " ran"), ("a b c", " d e f g")]
    scores = api.loglikelihood([SimpleNamespace(args=pair) for pair in pairs])
    for (context, continuation), (score, greedy) in zip(pairs, scores, strict=True):
        ids = library().tokenizer.encode(context + continuation)
        (one,) = library().generate([ids], SamplingParams(max_tokens=0, prompt_logprobs=1))
        assert one.prompt_logprobs
        records = one.prompt_logprobs[len(library().tokenizer.encode(context)) :]
        assert score == pytest.approx(sum(record.logprob for record in records if record), abs=1e-3)
        assert greedy == all(record.top[0][0] == record.token_id for record in records if record)
