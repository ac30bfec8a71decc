"""GPT-2's BPE from the ranks in the package."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.text.tokenizer import LONGEST_TOKEN, Tokenizer, gpt2_tokenizer

tokenizer = gpt2_tokenizer()


@pytest.mark.parametrize(
    "text, token_ids",
    [
        ("Hello world", [15496, 995]),
        ("Once upon a time", [7454, 2402, 257, 640]),
        (" the", [262]),
        ("naïve café", [2616, 38776, 40304]),
    ],
)
def test_ids_are_those_of_openais_released_encoder(text: str, token_ids: list[int]) -> None:
    assert tokenizer.encode(text) == token_ids


def test_ranks_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoinfer.text.tokenizer.RANKS_SHA256", "0" * 64)
    with pytest.raises(ValueError, match="published hash"):
        Tokenizer()


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_round_trip(text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_token_is_text() -> None:
    assert 50256 not in tokenizer.encode("<|endoftext|>")
    assert tokenizer.decode(tokenizer.encode("<|endoftext|>")) == "<|endoftext|>"


def test_lone_surrogate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"U\+D800 at character 2"):
        tokenizer.encode("ab\ud800")


@pytest.mark.parametrize("character", [" ", "a", "\n", "é", "🦜"])
def test_long_texts(character: str) -> None:
    """The largest text that is let through does not end tiktoken's regular expression; one byte more is refused."""
    assert max(len(tokenizer.token_bytes(i)) for i in range(50257)) == LONGEST_TOKEN
    most = LONGEST_TOKEN * 1024 // len(character.encode())
    assert tokenizer.encode(character * most, context=1024)
    with pytest.raises(ValueError, match="can hold"):
        tokenizer.encode(character * (most + 1), context=1024)


def test_ids_past_the_vocabulary_are_named() -> None:
    assert tokenizer.decode([15496, 50300]) == "Hello<|50300|>"
