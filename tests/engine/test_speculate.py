"""Speculation: the tokens of plain decoding, whatever is drafted, captured or not, up to where a row ends."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.requests import Completion
from nanoinfer.speculate.engine import VerifyKey
from nanoinfer.verify import verify_tokens
from tests.conftest import SMALL, STD, prompts_of
from tests.engine.drafting import (
    FREE,
    LENGTHS,
    MIXED,
    SCORED,
    Right,
    Scripted,
    begun_with,
    graphed,
    seen,
    speculating,
    texts_of,
)  # fmt: skip

GREEDY = {"temperature": 0, "seed": 1, **FREE}


@pytest.fixture(params=["dense", "paged"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestTokensEqual:
    @pytest.mark.parametrize("params", [MIXED, SCORED], ids=["samplers", "penalties and logprobs"])
    @pytest.mark.parametrize("right", [1.0, 0.8, 0.0])
    def test_ragged_and_refilled(
        self, small_model: GPT2, plain: LLM, engine: str, params: list[SamplingParams], right: float
    ) -> None:
        """More rows than fit, drafts of all lengths, right and wrong, up to the context's end."""
        prompts = prompts_of(LENGTHS)
        expected = plain.generate(prompts, params)
        llm = speculating(small_model, Scripted(texts_of(expected), Random(1), right), engine=engine, max_batch=2)
        done = llm.generate(prompts, params)
        assert seen(done) == seen(expected)
        print(verify_tokens(llm.forward_logits, done, params))
        stats = llm.stats
        if params is MIXED:  # beside penalties and logprobs there are none
            assert stats.verify_steps > 10
            assert (stats.accepted_tokens > stats.draft_tokens * 0.3) == (right > 0)
        assert stats.accepted_tokens <= stats.draft_tokens
        assert stats.new_tokens == sum(len(c.token_ids) for c in done)
        assert stats.dropped_tokens == 0

    @pytest.mark.parametrize("k", [1, 2, 5, 8])
    def test_all_drafts_right(self, small_model: GPT2, plain: LLM, engine: str, k: int) -> None:
        """Every step gives k + 1 tokens, but the last one of a row, to the last position."""
        prompts = prompts_of([96 - k, 40])
        params = SamplingParams(max_tokens=31, **GREEDY)
        expected = plain.generate(prompts, params)
        llm = speculating(small_model, Right(texts_of(expected), Random(1)), k, engine=engine, max_batch=1)
        assert seen(llm.generate(prompts, params)) == seen(expected)
        counts = [len(c.token_ids) for c in expected]
        assert counts == [k + 4, 31]
        assert llm.stats.decode_steps == sum(-(-(count - 1) // (k + 1)) for count in counts)
        assert llm.stats.accepted_tokens == llm.stats.draft_tokens


class TestEnds:
    """A row may end in the middle of a run of accepted tokens."""

    @pytest.mark.parametrize("begin", range(0, 12, 2))
    @pytest.mark.parametrize("length", [1, 4])
    def test_stop_strings(self, small_model: GPT2, plain: LLM, begin: int, length: int) -> None:
        """At the front of a run, across a border of tokens, at its end: no id and no logprob is left behind it."""
        prompt, params = prompts_of([5], seed=1)[0], {"seed": 8, "max_tokens": 20, "logprobs": 0, **FREE}
        text = plain.generate(prompt, SamplingParams(**params))[0]
        stop = text.text[begin : begin + length]
        expected = plain.generate(prompt, SamplingParams(stop=[stop], **params))
        llm = speculating(small_model, Right(texts_of([text]), Random(1)), 8, engine="dense")
        done = llm.generate(prompt, SamplingParams(stop=[stop], **params))
        assert seen(done) == seen(expected)
        assert done[0].logprobs is not None
        assert len(done[0].logprobs) == len(done[0].token_ids) < 20

    def test_a_drafter_that_fails_ends_its_requests_only(self, small_model: GPT2, plain: LLM) -> None:
        llm = LLM(small_model, engine="paged", speculate="lookup")
        prompt, params = prompts_of([30])[0], SamplingParams(max_tokens=20, **GREEDY)
        kept = llm.core.drafter  # type: ignore[attr-defined]
        with pytest.raises(AttributeError):
            begun_with(llm, None).generate(prompt, params)
        assert seen(begun_with(llm, kept).generate(prompt, params)) == seen(plain.generate(prompt, params))


GRAPHED = SamplingParams(seed=0, max_tokens=30, **FREE), *MIXED  # rows without penalties and logprobs


def drafts_of(expected: list[Completion]) -> Scripted:
    return Scripted(texts_of(expected), Random(3))


@pytest.mark.parametrize("engine", ["dense-graph", "paged-graph"])
class TestCaptured:
    @pytest.mark.parametrize("one_by_one", [0, 8])
    def test_replayed_verification(self, small_model: GPT2, plain: LLM, engine: str, one_by_one: int) -> None:
        """Ragged, padded in rows and drafts, refilled, up to the context's end; few tokens each attended by itself."""
        prompts = prompts_of([2, *LENGTHS])
        expected = plain.generate(prompts, GRAPHED)
        llm = graphed(small_model, engine, drafts_of(expected), read_multiple=32)
        if engine == "paged-graph":
            cache: Any = llm.core.cache
            cache.one_by_one = one_by_one
        assert seen(llm.generate(prompts, GRAPHED)) == seen(expected)
        stats: Any = llm.stats
        assert stats.verify_steps > 20
        assert stats.accepted_tokens > 50
        assert stats.replayed_steps == stats.decode_steps
        assert not stats.fallbacks["more rows than the largest graph has"]

    def test_warm_up_leaves_nothing_to_capture(self, small_model: GPT2, plain: LLM, engine: str) -> None:
        prompts = prompts_of([3, 8, 5])
        expected = plain.generate(prompts, GRAPHED[:3])
        llm = graphed(small_model, engine, drafts_of(expected), max_batch=2, draft_tokens=3)
        told: list[tuple[int, int]] = []
        llm.warm_up(lambda done, total: told.append((done, total)))
        core: Any = llm.core
        stats: Any = llm.stats
        captures = stats.captures
        assert told[-1] == (captures, captures)
        verified = [key for key in core.graphs if isinstance(key, VerifyKey)]
        assert not any(isinstance(key.sampler, PenaltySampler) for key in verified)
        assert {(key.rows, key.columns) for key in verified} == {(rows, 1 + n) for rows in (1, 2) for n in (1, 2, 3)}
        assert seen(llm.generate(prompts, GRAPHED[:3])) == seen(expected)
        assert stats.captures == captures
        assert stats.replayed_steps == stats.decode_steps


class TestFrontDoor:
    @pytest.mark.parametrize(
        "config, words",
        [
            ({"speculate": True}, "speculate must be 'lookup', 'ngram', a model, or None, not True"),
            ({"speculate": "no-such-model"}, "there is no model 'no-such-model'"),
            ({"speculate": "lookup", "adaptive_drafts": 1}, "adaptive_drafts must be True or False, not 1"),
            ({"speculate": "lookup", "draft_tokens": 0}, "draft_tokens must be a whole number from 1 to 64, not 0"),
            ({"speculate": "ngram"}, "GPT-2's vocabulary of 50257 tokens, not 211"),
            (
                {"speculate": random_model(replace(SMALL, vocab_size=13), seed=2, std=STD)},
                "must have the model's vocabulary of 211 tokens, not 13",
            ),
        ],
    )
    def test_refused_by_name(self, small_model: GPT2, config: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            LLM(small_model, engine="dense", **config)

    def test_naive_keeps_what_drafts_are_verified_against(self, small_model: GPT2, plain: LLM) -> None:
        with pytest.warns(RuntimeWarning, match="engine naive runs as engine dense does: drafts need a cache"):
            llm = LLM(small_model, engine="naive", speculate="lookup", adaptive_drafts=False)
        prompt, params = prompts_of([30]), SamplingParams(max_tokens=20, **GREEDY)
        assert seen(llm.generate(prompt, params)) == seen(plain.generate(prompt, params))
        assert (llm.engine, llm.stats.verify_steps > 0) == ("naive", True)

    def test_the_small_model_is_drafted_for(self) -> None:
        """By itself, which is always right, by what its texts repeat, or by what texts of its kind repeat."""
        params = [SamplingParams(temperature=0, max_tokens=40), SamplingParams(seed=3, max_tokens=40, stop=["."])]
        prompts = ["Once upon a time there was", "The dog saw a big"]
        expected = LLM(engine="dense").generate(prompts, params)
        for speculate in ("small", "lookup", "ngram"):
            llm = LLM(engine="paged", speculate=speculate, adaptive_drafts=False)
            done = llm.generate(prompts, params)
            assert [c.text for c in done] == [c.text for c in expected]
            assert llm.stats.verify_steps > 0
            assert (llm.stats.accepted_tokens == llm.stats.draft_tokens) == (speculate == "small")
