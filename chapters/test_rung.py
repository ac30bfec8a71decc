"""Every engine of a rung gives the tokens of its first one: `nanoinfer rung` puts this file beside the package."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.chapters import ENGINES

PROMPTS = ["Once upon a time", "The dog", "A", "There was a king who had three sons, and the youngest of them"]
PARAMS = [
    SamplingParams(max_tokens=24, temperature=0, seed=1),
    SamplingParams(max_tokens=9, seed=2),
    SamplingParams(max_tokens=30, temperature=0.7, top_k=20, top_p=0.9, seed=3, stop=["."]),
    SamplingParams(max_tokens=17, temperature=1.3, seed=4),
]


def answers(**settings: Any) -> list[tuple[Any, ...]]:
    """Return what comes of the prompts, times left out."""
    done = LLM(**settings).generate(PROMPTS, PARAMS)
    return [(one.index, one.token_ids, one.text, one.finish_reason, one.seed) for one in done]


@pytest.fixture(scope="module")
def expected() -> list[tuple[Any, ...]]:
    """Return what the first engine says."""
    return answers(engine=next(iter(ENGINES)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("max_batch", [1, 3])
def test_tokens_are_the_first_engine_s(engine: str, max_batch: int, expected: list[tuple[Any, ...]]) -> None:
    """Greedy and sampled, with filters and a stop, one at a time and refilled."""
    assert answers(engine=engine, max_batch=max_batch) == expected


def test_a_request_runs_twice_alike() -> None:
    """It is a record: what its stop strings have found so far belongs to the run."""
    llm = LLM()
    requests = llm.maker.requests(PROMPTS, PARAMS)
    runs = [{tuple(s.tokens) for step in llm.engine.generate(requests) for s in step if s.finish_reason} for _ in "12"]
    assert runs[0] == runs[1]


def test_a_model_of_the_hub_asks_for_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="pip install huggingface_hub"):
        LLM("gpt2")
