"""What comes back: the library's own tokens, texts and logprobs, whole and in pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from nanoinfer import Completion, SamplingParams
from nanoinfer.serve.answers import token_text
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.serve.serving import PATH, Served, library

THAI, EMOJI = "สวัสดี", "🙂👩‍👩‍👧"
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "text": ("Once upon", {"seed": 1}),
    "token ids": ([1, 2, 3], {"seed": 1, "max_tokens": 20}),
    "lists of ids": ([[1, 2], [3]], {"seed": 4, "n": 2}),
    "both": (["Once", [3, 4]], {"seed": 4, "temperature": 0.7, "top_p": 0.9}),
    "greedy": ("Once", {"temperature": 0, "presence_penalty": 1, "frequency_penalty": 0.5, "max_tokens": 40}),
    "top_k": ("Once", {"top_k": 5, "seed": 2, "ignore_eos": True, "n": 3, "best_of": 3}),
    "characters": (f"{THAI} {EMOJI}", {"seed": 2, "max_tokens": 30}),
    "half a character": (gpt2_tokenizer().encode(EMOJI)[:-1], {"seed": 2}),
    "to the end of the context": ([7] * 250, {"seed": 1, "max_tokens": 100}),
    "stop": ("Once", {"seed": 5, "max_tokens": 30, "stop": ["iable zebra", "anges2 erup"]}),  # over three tokens
    "echo": (["Once", "The fox"], {"seed": 1, "max_tokens": 3, "n": 2, "echo": True}),
    "echo alone": (["Once", "The fox"], {"max_tokens": 0, "echo": True}),
}


def expected(prompt: Any, fields: dict[str, Any]) -> list[Completion]:
    known = SamplingParams.__dataclass_fields__
    given = {"max_tokens": 16, "prompt_logprobs": 0 if fields.get("max_tokens") == 0 else None}
    given |= {name: value for name, value in fields.items() if name in known}
    return library().generate(prompt, SamplingParams(**given))


@pytest.mark.parametrize("case", CASES)
def test_whole_streamed_and_the_librarys_are_the_same(server: Served, case: str) -> None:
    prompt, fields = CASES[case]
    done = expected(prompt, fields)
    assert "stop" not in fields or done[0].finish_reason == "stop"
    answer = server.post(prompt, return_token_ids=True, **fields)
    assert answer.status_code == 200, answer.text
    got = answer.json()
    assert (got["object"], got["model"]) == ("text_completion", "tiny")
    assert [choice["index"] for choice in got["choices"]] == list(range(len(done)))
    *events, usage, end = server.events(prompt, return_token_ids=True, stream_options={"include_usage": True}, **fields)
    assert (end, usage["choices"], usage["usage"]) == ("[DONE]", [], got["usage"])
    assert all(event["usage"] is None for event in events)
    for index, (one, choice) in enumerate(zip(done, got["choices"], strict=True)):
        text = library().tokenizer.decode(one.prompt_token_ids) * fields.get("echo", False) + one.text
        assert (choice["text"], tuple(choice["token_ids"])) == (text, one.token_ids)
        assert (choice["finish_reason"], choice["logprobs"]) == (one.finish_reason, None)
        mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(event["text"] for event in mine) == text
        assert [token for event in mine for token in event["token_ids"]] == [*one.token_ids]
        assert [event["finish_reason"] for event in mine] == [None] * (len(mine) - 1) + [one.finish_reason]
    new = sum(len(one.token_ids) for one in done)
    prompts = sum(len(one.prompt_token_ids) for one in done if one.sample == 0)
    assert got["usage"] == {"prompt_tokens": prompts, "completion_tokens": new, "total_tokens": prompts + new}


@pytest.mark.parametrize("prompt", ["Once upon", [1], f"{EMOJI}a", CASES["half a character"][0]])
@pytest.mark.parametrize("max_tokens", [0, 5])
def test_echo_with_logprobs(server: Served, prompt: Any, max_tokens: int) -> None:
    """Of all prompt tokens but the first, then of the new ones; each where its text begins."""
    fields = {"seed": 1, "max_tokens": max_tokens, "logprobs": 2}
    (one,) = expected(prompt, fields | {"prompt_logprobs": 2})
    assert one.prompt_logprobs
    records = [*one.prompt_logprobs, *(one.logprobs or ())]
    text = library().tokenizer.decode(one.prompt_token_ids) + one.text
    (whole,) = server.post(prompt, echo=True, **fields).json()["choices"]
    *events, _ = server.events(prompt, echo=True, **fields)
    for choices in ([whole], [event["choices"][0] for event in events]):
        assert "".join(choice["text"] for choice in choices) == text
        found = {name: [each for choice in choices for each in choice["logprobs"][name]] for name in whole["logprobs"]}
        assert found["token_logprobs"] == pytest.approx([record and record.logprob for record in records], abs=1e-4)
        assert found["top_logprobs"][0] is None
        for record, top, token in zip(records[1:], found["top_logprobs"][1:], found["tokens"][1:], strict=True):
            assert record
            values = {value for _, value in record.top} | {record.logprob}
            assert sorted(top.values()) == pytest.approx(sorted(values), abs=1e-4)
            assert top[token] == pytest.approx(record.logprob, abs=1e-4)
    if "\ufffd" not in text:
        tokens, starts = whole["logprobs"]["tokens"], [*whole["logprobs"]["text_offset"], len(text)]
        spans = [text[a:b] for a, b in pairwise(starts)]
        plain = [at for at, token in enumerate(tokens) if not token.startswith("bytes:")]
        assert [spans[at] for at in plain] == [tokens[at] for at in plain]


def test_no_two_tokens_look_alike() -> None:
    tokenizer = gpt2_tokenizer()
    assert len({token_text(tokenizer, token) for token in range(50_257)}) == 50_257


ERRORS: dict[str, tuple[dict[str, Any], int, str | None, str]] = {
    "model": ({"model": "gpt-4"}, 404, "model", "there is no model 'gpt-4' here"),
    "a long prompt": ({"prompt": [1] * 256}, 400, "prompt", "no room for a new one: the context is 256"),
    "a long text": ({"prompt": "a " * 20_000}, 400, "prompt", "more than a context of 256 tokens can hold"),
    "an empty prompt": ({"prompt": ""}, 400, "prompt", "at least one token"),
    "an unknown token": ({"prompt": [50_257]}, 400, "prompt", "token ids from 0 to 50256"),
    "a lone surrogate": ({"prompt": "\ud800"}, 400, "prompt", "lone surrogate"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_is_wrong_is_said_in_openais_shape(server: Served, case: str) -> None:
    fields, status, param, sentence = ERRORS[case]
    for stream in (False, True):
        answer = server.post(**fields, stream=stream)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
        assert sentence in error["message"]


def test_other_paths(server: Served) -> None:
    http = server.http
    listed = http.get("/v1/models").json()
    assert listed["data"] == [http.get("/v1/models/tiny").json()]
    assert listed["data"][0]["max_model_len"] == 256
    for method, path, status, sentence in (
        ("GET", "/v1/models/owner/other", 404, "there is no model 'owner/other'"),
        ("POST", "/v1/chat/completions", 404, "no chat format"),
        ("POST", "/v1/models", 405, "method not allowed"),
        ("GET", PATH, 405, "method not allowed"),
        *(("GET", path, 404, "not found") for path in ("/v1/nothing", "/docs", "/openapi.json", "/", "/health/")),
    ):
        answer = http.request(method, path, json={"messages": []} if method == "POST" else None)
        assert answer.status_code == status, path
        assert sentence in answer.json()["error"]["message"]
        assert "access-control-allow-origin" not in answer.headers


def test_a_request_has_an_id(server: Served) -> None:
    answer = server.post(max_tokens=1)
    assert answer.headers["x-request-id"] == answer.json()["id"]
    assert server.post(max_tokens=1, headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for bad in ("a b", "x" * 65, "a\tb"):
        assert server.post(max_tokens=1, headers={"X-Request-Id": bad}).headers["x-request-id"].startswith("cmpl-")
