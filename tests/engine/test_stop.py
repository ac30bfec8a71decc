"""Text that comes a token at a time, and stop strings: one class cuts them, for `generate` and for `stream`."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.text.stop import TextStream
from nanoinfer.text.tokenizer import gpt2_tokenizer

tokenizer = gpt2_tokenizer()


@given(st.lists(st.integers(0, 50256), max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_tokens_stream_as_they_decode(ids: list[int]) -> None:
    """Random tokens are mostly no UTF-8: the replacement characters come out the same, in pieces or at once."""
    stream = TextStream(tokenizer)
    assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids)


def stream_text(text: str, *stop: str) -> tuple[str, bool]:
    stream = TextStream(tokenizer, stop)
    out = "".join(map(stream.push, tokenizer.encode(text)))
    return out + stream.finish(), stream.stopped


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


def by_definition(ids: Sequence[int], stop: Sequence[str], stop_ids: frozenset[int]) -> tuple[str, int, str]:
    """Text, number of tokens and finish reason of a row whose model would produce `ids`.

    The row ends with the first token after which its whole characters hold a stop string; its text ends before the
    earliest of them. What half a character leaves at the end is shown as U+FFFD and ends no row.
    """
    decoder, text = codecs.getincrementaldecoder("utf-8")(errors="replace"), ""
    for count, token in enumerate(ids, 1):
        if token in stop_ids:
            return text + decoder.decode(b"", final=True), count, "stop"
        text += decoder.decode(tokenizer.token_bytes(token))
        if found := [text.index(one) for one in stop if one in text]:
            return text[: min(found)], count, "stop"
    return text + decoder.decode(b"", final=True), len(ids), "length"


@pytest.fixture(scope="module")
def llm(small_model: GPT2) -> LLM:
    return LLM(small_model, engine="dense", max_batch=1, threads=1)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_generate_and_stream_cut_at_the_same_place(llm: LLM, data: st.DataObject) -> None:
    """Ids below 256 are single bytes: many are no UTF-8, or half a character. Stop strings come out of the text."""
    prompt, seed = [7, 100, 30], data.draw(st.integers(0, 50))
    asked = {"temperature": 2.0, "seed": seed, "ignore_eos": True, "max_tokens": 12}
    ids = llm.generate([prompt], SamplingParams(**asked))[0].token_ids
    text = tokenizer.decode(ids)
    at = st.integers(0, len(text) - 1)
    stop = [
        text[first : first + length]
        for first, length in data.draw(st.lists(st.tuples(at, st.integers(1, 3)), max_size=3))
    ]
    stop_ids = data.draw(st.lists(st.sampled_from(ids), max_size=1))
    params = SamplingParams(**asked, stop=stop, stop_token_ids=stop_ids)
    expected = by_definition(ids, stop, frozenset(stop_ids))
    (done,) = llm.generate([prompt], params)
    assert (done.text, len(done.token_ids), done.finish_reason) == expected
    pieces = list(llm.stream([prompt], params))
    assert "".join(piece.text for piece in pieces) == done.text
    assert pieces[-1].completion is not None
    assert pieces[-1].completion.text == done.text
