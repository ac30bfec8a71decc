"""GPT-2's BPE from the ranks in the package, and text that comes out a token at a time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.text.tokenizer import LONGEST_TOKEN, TextStream, Tokenizer, gpt2_tokenizer

tokenizer = gpt2_tokenizer()

# Ids as OpenAI's released encoder gives them for these texts.
KNOWN = {
    "Hello world": [15496, 995],
    "Once upon a time": [7454, 2402, 257, 640],
    " the": [262],
    "": [],
    "naïve café": [2616, 38776, 40304],
}


@pytest.mark.parametrize("text", KNOWN)
def test_known_ids(text: str) -> None:
    assert tokenizer.encode(text) == KNOWN[text]


def test_ranks_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoinfer.text.tokenizer.RANKS_SHA256", "0" * 64)
    with pytest.raises(ValueError, match="published hash"):
        Tokenizer()


def test_longest_token() -> None:
    assert max(len(tokenizer.token_bytes(i)) for i in range(50257)) == LONGEST_TOKEN


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_round_trip(text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text(max_size=60), st.randoms())
@settings(max_examples=200, deadline=None)
def test_stream_is_decode(text: str, random: object) -> None:
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer)
    assert "".join(map(stream.push, ids)) + stream.finish() == text


@given(st.lists(st.integers(0, 50256), max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_tokens_stream_as_they_decode(ids: list[int]) -> None:
    """Random tokens are mostly no UTF-8: the replacement characters come out the same, in pieces or at once."""
    stream = TextStream(tokenizer)
    assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids)


def test_no_half_characters() -> None:
    ids = tokenizer.encode("🦜🏴‍☠️")
    assert len(ids) > 2
    stream = TextStream(tokenizer)
    pieces = [stream.push(i) for i in ids]
    assert "" in pieces  # a token that only begins a character shows nothing
    assert "\ufffd" not in "".join(pieces)
    cut = TextStream(tokenizer)
    cut.push(ids[0])
    assert cut.finish() == "\ufffd"  # a text that ends in half a character says so, once


def test_special_token_is_text_unless_asked() -> None:
    assert 50256 not in tokenizer.encode("<|endoftext|>")
    assert tokenizer.decode(tokenizer.encode("<|endoftext|>")) == "<|endoftext|>"
    assert tokenizer.encode("<|endoftext|>", allow_special=True) == [50256]


def test_lone_surrogate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"U\+D800 at character 2"):
        tokenizer.encode("ab\ud800")


@pytest.mark.parametrize("character", [" ", "a", "\n", "é", "🦜"])
def test_long_texts(character: str) -> None:
    """The largest text that is let through does not end tiktoken's regular expression; one byte more is refused."""
    most = LONGEST_TOKEN * 1024 // len(character.encode())
    assert tokenizer.encode(character * most, context=1024)
    with pytest.raises(ValueError, match="can hold"):
        tokenizer.encode(character * (most + 1), context=1024)


def stream_text(text: str, *stop: str) -> tuple[str, bool]:
    stream = TextStream(tokenizer, stop)
    out = "".join(map(stream.push, tokenizer.encode(text)))
    return out + stream.finish(), stream.stopped


def test_stop_strings() -> None:
    assert stream_text("one two three", "two") == ("one ", True)
    assert stream_text("one two three", "four") == ("one two three", False)
    assert stream_text("one two three", "thre", "o t") == ("one tw", True)
    assert stream_text("aaab", "ab") == ("aa", True)
    assert stream_text("one tw", "two") == ("one tw", False)


def test_beginning_of_a_stop_string_is_held_back() -> None:
    stream = TextStream(tokenizer, ["\n\nEND"])
    shown = [stream.push(i) for i in tokenizer.encode("text\n\nEXIT")]
    assert "".join(shown) == "text\n\nEXIT"
    held = TextStream(tokenizer, ["\n\nEND"])
    assert "".join(held.push(i) for i in tokenizer.encode("text\n\nEN")) == "text"
    assert held.finish() == "\n\nEN"


@given(st.text(alphabet="ab", max_size=12), st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=2))
@settings(max_examples=200, deadline=None)
def test_stop_strings_never_show(text: str, stop: list[str]) -> None:
    shown, stopped = stream_text(text, *stop)
    found = [text.find(s) for s in stop if s in text]
    assert stopped == bool(found)
    assert text.startswith(shown)
    assert not any(s in shown for s in stop)
    if not found:
        assert shown == text


def test_ids_past_the_vocabulary_are_named() -> None:
    assert tokenizer.decode([15496, 50300]) == "Hello<|50300|>"
