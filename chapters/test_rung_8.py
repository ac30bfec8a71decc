"""What chapter 8 adds, from a rung's own front door: `nanoinfer rung` puts this file beside the package."""

from __future__ import annotations

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.chapters import ENGINES

PROMPTS = ["Once upon a time", "The dog", "There was a king who had three sons, and the youngest of them"]
PARAMS = [
    SamplingParams(max_tokens=12, temperature=0),
    SamplingParams(max_tokens=9, temperature=0.8, seed=1),
    SamplingParams(max_tokens=14, top_k=20, top_p=0.9, seed=2, presence_penalty=0.5),
]


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "fused"])
def test_ranks_change_no_token(engine: str) -> None:
    """Two processes on a CPU, or two GPUs, with half of the heads each."""
    expected = [one.token_ids for one in LLM(engine=engine, dtype="float32").generate(PROMPTS, PARAMS)]
    llm = LLM(engine=engine, tensor_parallel=2, max_batch=2, dtype="float32")
    assert [one.token_ids for one in llm.generate(PROMPTS, PARAMS)] == expected
    assert llm.rank
    with llm.rank.all_do("core.alike"):
        assert llm.core.alike()
    llm.rank.close()
