"""Drafts on a GPU: captured verify steps, in float32, give the tokens of plain decoding."""

from __future__ import annotations

from random import Random

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.none import forward_logits
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.verify import verify_tokens
from tests.conftest import prompts_of
from tests.engine.drafting import LENGTHS, MIXED, SCORED, Scripted, seen, speculating, texts_of
from tests.gpu.conftest import EAGER, GRAPHS

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("error::RuntimeWarning")]
ENGINES = [("fused", None), *EAGER, *GRAPHS]


@pytest.mark.parametrize("params", [MIXED, SCORED], ids=["samplers", "penalties and logprobs"])
@pytest.mark.parametrize("right, rows", [(1.0, 2), (0.8, 5), (0.8, 2), (0.0, 2)])  # few tokens have another kernel
@pytest.mark.parametrize("engine, fused", ENGINES)
def test_tokens(
    small_model: GPT2,
    model: GPT2,
    engine: str,
    fused: bool | None,
    right: float,
    rows: int,
    params: list[SamplingParams],
) -> None:
    """More rows than fit, ragged drafts, up to the context's end."""
    prompts = prompts_of(LENGTHS)
    expected = LLM(small_model, engine="naive").generate(prompts, params)
    llm = speculating(model, Scripted(texts_of(expected), Random(1), right), engine=engine, fused=fused, max_batch=rows)
    llm.warm_up()
    done = llm.generate(prompts, params)
    print(verify_tokens(lambda text: forward_logits(small_model, text), done, params), llm.stats)
    assert seen(done) == seen(expected)
    stats = llm.stats
    if params is SCORED:  # beside penalties and logprobs there are no drafts
        return
    assert stats.verify_steps > 10
    assert stats.accepted_tokens <= stats.draft_tokens
    if engine.endswith("-graph"):
        assert stats.replayed_steps > 10
        assert not stats.fallbacks


@pytest.mark.parametrize("engine", ["dense-graph", "paged-graph"])
def test_lookup_and_a_draft_model(small_model: GPT2, model: GPT2, engine: str) -> None:
    """The two drafters that a user can ask for; the model as its own draft is always right."""
    prompts = prompts_of(LENGTHS)
    expected = LLM(small_model, engine="naive").generate(prompts, MIXED)
    for drafter in ("lookup", model):
        for adaptive in (False, True):
            with LLM(model, engine=engine, speculate=drafter, adaptive_drafts=adaptive, max_batch=3) as llm:
                done = llm.generate(prompts, MIXED)
                assert seen(done) == seen(expected), (drafter, adaptive)
                if drafter is model and not adaptive:
                    assert llm.stats.accepted_tokens == llm.stats.draft_tokens > 0
