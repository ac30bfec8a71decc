"""What chapter 7 adds, from a rung's own front door: `nanoinfer rung` puts this file beside the package."""

from __future__ import annotations

import pytest

from nanoinfer import LLM, SamplingParams

PROMPTS = ["one two three four one two three four one two three", "The dog", "Once upon a time"]
PARAMS = [
    SamplingParams(max_tokens=24, temperature=0),
    SamplingParams(max_tokens=20, seed=2, temperature=0.5),
    SamplingParams(max_tokens=24, temperature=0, stop=["."]),
]


@pytest.mark.parametrize(
    "engine, speculate", [("dense", "lookup"), ("paged", "ngram"), ("fused", "lookup"), ("fused", "small")]
)
def test_drafts_change_no_token(engine: str, speculate: str) -> None:
    """Whoever drafts; and some drafts are right."""
    llm = LLM(engine=engine, speculate=speculate, draft_tokens=3, adaptive_drafts=False)
    expected = [one.token_ids for one in LLM(engine=engine).generate(PROMPTS, PARAMS)]
    assert [one.token_ids for one in llm.generate(PROMPTS, PARAMS)] == expected
    assert 0 < llm.engine.stats.accepted_tokens <= llm.engine.stats.draft_tokens
