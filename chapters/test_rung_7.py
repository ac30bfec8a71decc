"""What chapter 7 adds, from a rung's own front door: `nanoinfer rung` puts this file beside the package."""

from __future__ import annotations

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.chapters import ENGINES

PROMPTS = ["one two three four one two three four one two three", "The dog", "Once upon a time"]
PARAMS = [SamplingParams(max_tokens=24, temperature=0), SamplingParams(max_tokens=20, seed=2, temperature=0.5)]


@pytest.mark.parametrize("engine", list(ENGINES)[1:])
@pytest.mark.parametrize("speculate", ["lookup", "ngram", "small"])
def test_drafts_change_no_token(engine: str, speculate: str) -> None:
    """Whoever drafts; and some drafts are right."""
    plain, llm = LLM(engine=engine), LLM(engine=engine, speculate=speculate, draft_tokens=3, adaptive_drafts=False)
    for params in PARAMS:
        expected = [one.token_ids for one in plain.generate(PROMPTS, params)]
        assert [one.token_ids for one in llm.generate(PROMPTS, params)] == expected
    assert 0 < llm.engine.stats.accepted_tokens <= llm.engine.stats.draft_tokens
