"""Every field of the API: what is served, what is accepted, and what is refused, in a sentence that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import completion_create_params as params

from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.errors import LONGEST, ApiError
from nanoinfer.serve.fields import FIELDS, CompletionRequest, parse, read

# What is taken, and what is refused, with a part of the sentence.
TRIED: dict[str, tuple[list[Any], list[tuple[Any, str]]]] = {
    "model": (["tiny"], [(None, "model is missing"), (3, "model must be a string")]),
    "prompt": (
        ["a", [1, 2], ["a", "b"], [[1], [2]], ["a", [1]], None],
        [([], "at least one"), (3, "must be text"), ({}, "must be text"), ([1, "a"], "must be text")],
    ),
    "max_tokens": ([1, 5000, None], [(0, "where echo is false"), (-1, "from 0"), (1.0, "whole"), ("1", "whole")]),
    "temperature": ([0, 0.5, 2, 3.0], [(-0.1, "from 0"), ("1", "a number"), (True, "a number")]),
    "top_p": ([0.1, 1], [(0, "from 1.18e-38"), (1.1, "to 1,")]),
    "n": ([1, 8], [(0, "from 1 to 128"), (129, "from 1 to 128"), (9, "more than the 8 completions")]),
    "seed": ([0, 2**63 - 1], [(-1, "from 0"), (2**63, "from 0"), (1.5, "whole number")]),
    "stop": (
        ["x", ["x", "y"], [], None],
        [([""], "at least one character"), (["a"] * 5, "at most 4"), ("a" * 257, "at most 256"), (3, "a string"),
         ([3], "strings of"), (0, "a string"), (False, "a string"), ({}, "a string"), ([None], "strings of")],
    ),
    "presence_penalty": ([-2, 2], [(2.1, "from -2 to 2")]),
    "frequency_penalty": ([-2, 2], [("x", "from -2 to 2")]),
    "logprobs": ([0, 20], [(21, "from 0 to 20"), (True, "from 0 to 20")]),
    "echo": ([True, False], [(1, "true or false")]),
    "stream": ([True, False], [("yes", "true or false")]),
    "stream_options": ([None], [({}, "where stream is false"), (3, "an object")]),
    "best_of": ([1, None], [(2, "equal n"), (True, "equal n")]),
    "logit_bias": ([{}, None], [({"50256": -100}, "left out or empty")]),
    "suffix": (["", None], [("x", "fills no gap"), (3, "a string")]),
    "user": (["me", None], [(3, "a string")]),
    "top_k": ([0, 40], [(-1, "from 0")]),
    "ignore_eos": ([True], [(0, "true or false")]),
    "stop_token_ids": (
        [[1]], [(["a"], "whole number"), ([[]], "whole number"), *((each, "a list of") for each in ("a", 0, {}))]
    ),
    "return_token_ids": ([True], [(1, "true or false")]),
}  # fmt: skip


def ask(**fields: Any) -> CompletionRequest:
    given = {"model": "tiny", "prompt": "a", **fields}
    return read(parse(json.dumps(given).encode()), ServeConfig(max_rows=8), (50256,))


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ask(**fields)
    assert caught.value.status == 400
    assert len(str(caught.value)) <= LONGEST
    return caught.value


def test_the_table_has_every_field_of_the_api_and_each_is_tried() -> None:
    theirs = set(params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert {*FIELDS} - {"top_k", "ignore_eos", "stop_token_ids", "return_token_ids"} == theirs
    assert {*TRIED} == {*FIELDS}


@pytest.mark.parametrize("name", TRIED)
def test_a_field(name: str) -> None:
    taken, not_taken = TRIED[name]
    for value in taken:
        assert ask(**{name: value})
    for value, sentence in not_taken:
        error = refused(**{name: value})
        assert sentence in str(error)
        assert error.param in (name, "prompt")
        assert str(error).startswith(name) or "completions" in str(error)


def test_a_missing_field_and_null_are_openais_default() -> None:
    asked = ask()
    assert (asked.params.max_tokens, asked.params.temperature, asked.params.top_p, asked.params.n) == (16, 1, 1, 1)
    assert asked == ask(**dict.fromkeys({*FIELDS} - {"model", "prompt"}))
    assert ask(prompt=None).prompts == [[50256]]
    with pytest.raises(ApiError, match="prompt is missing"):
        read({"model": "a"}, ServeConfig(), ())


def test_a_sentence_is_short_whatever_was_sent() -> None:
    error = refused(max_token=3)
    assert (error.param, error.code) == ("max_token", "unknown_parameter")
    assert len(refused(**{"x" * 5000: 1}).body) < 600
    for name, value in (("temperature", "x" * 10_000), ("user", ["x" * 10_000]), ("stop_token_ids", "x" * 10_000)):
        assert refused(**{name: value}).param == name


BODIES = [
    b"", b"{", b"[]", b"3", b"null", b'{"a": NaN}', b'{"a": Infinity}', b"\xff\xfe\x00", b'{"a": ' + b"9" * 5000 + b"}",
    b"[" * 100_000, b'{"a":' * 100_000, b"\x00" * 10,
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:12]))
def test_a_body_that_is_no_object(body: bytes) -> None:
    with pytest.raises(ApiError, match="the body must be one JSON object") as caught:
        parse(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "settings",
    [{"queue": -1}, {"connections": 0}, {"max_rows": 0}, {"port": 70_000}, {"stall_timeout": 0}, {"max_tokens": 0},
     {"body_timeout": float("nan")}, {"request_timeout": float("inf")}, {"api_key": ""}, {"api_key": "a\nb"}],
)  # fmt: skip
def test_a_bound_that_makes_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(settings))} must "):
        ServeConfig(**settings)
