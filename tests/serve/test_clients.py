"""Clients that others wrote: OpenAI's own, and an evaluation harness's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import openai
import pytest

from nanoinfer import SamplingParams
from tests.serve.serving import Served, engine, library, serving

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
        assert whole.usage
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
        assert whole.choices[0].logprobs
        assert len(whole.choices[0].logprobs.tokens or ()) == 8
        texts, usage = ["", ""], None
        for event in api.completions.create(**ARGUMENTS, stream=True, stream_options={"include_usage": True}):
            usage = event.usage
            for choice in event.choices:
                texts[choice.index] += choice.text
        assert (texts, usage) == (expected, whole.usage)


def test_errors_are_the_clients_own(server: Served) -> None:
    with client(server) as api:
        with pytest.raises(openai.NotFoundError, match="there is no model"):
            api.completions.create(model="other", prompt="a")
        with pytest.raises(openai.BadRequestError, match="suffix is not supported") as bad:
            api.completions.create(model="tiny", prompt="a", suffix="b")
        assert (bad.value.param, bad.value.type) == ("suffix", "invalid_request_error")
        with pytest.raises(openai.NotFoundError, match="no chat format"):
            api.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}])
    with serving(engine(), api_key="right") as locked, pytest.raises(openai.AuthenticationError):
        client(locked, "wrong").models.list()


@pytest.mark.long
@pytest.mark.parametrize("as_text", [True, False])
def test_an_evaluation_harness(server: Served, as_text: bool) -> None:
    """lm-eval's client for completions: its scores are the library's logprobs of the prompt."""
    pytest.importorskip("lm_eval", reason="needs lm-eval: pip install -e '.[harness]'")
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    tokenizer = library().tokenizer

    class Harness(LocalCompletionsAPI):  # type: ignore[misc]
        """With this project's tokenizer; by itself it would fetch one from the hub."""

        @property
        def eot_token_id(self) -> int:
            return 50_256

        def tok_encode(self, string: str, **_: Any) -> list[int]:
            return tokenizer.encode(string)

        def decode_batch(self, tokens: list[list[int]]) -> list[str]:
            return list(map(tokenizer.decode, tokens))

    api = Harness(
        base_url=f"{server.url}/v1/completions", model="tiny", tokenizer_backend=None,
        num_concurrent=1, max_length=256, batch_size=1,
    )  # fmt: skip
    api.tokenizer = tokenizer  # it asks only whether there is one
    api.tokenized_requests = not as_text
    pairs = [("Once upon a", " time there was"), ("The fox", " ran"), ("a b c", " d e f g")]
    scores = api.loglikelihood([SimpleNamespace(args=pair) for pair in pairs])
    for (context, continuation), (score, greedy) in zip(pairs, scores, strict=True):
        ids = tokenizer.encode(context + continuation)
        (one,) = library().generate([ids], SamplingParams(max_tokens=0, prompt_logprobs=1))
        assert one.prompt_logprobs
        records = [record for record in one.prompt_logprobs[len(tokenizer.encode(context)) :] if record]
        assert score == pytest.approx(sum(record.logprob for record in records), abs=1e-3)
        assert greedy == all(record.top[0][0] == record.token_id for record in records)
