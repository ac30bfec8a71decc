"""The tokens of five hundred requests are those that the engine of before the rungs gave, on every engine."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.cache.naive import forward_logits
from nanoinfer.config import ENGINES, RECIPES
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.verify import verify_tokens
from tests.engine.recorded import FILE, GROUPS

pytestmark = pytest.mark.long
SETTINGS: dict[str, dict[str, Any]] = {
    "": {},
    " one row": {"max_batch": 1},
    " tiny pool": {"kv_blocks": 9},
    " tiny pool, preempted": {"kv_blocks": 9, "preemption": True, "prefix_caching": True},
}


CASES = [(name, each) for name in ENGINES for each in SETTINGS if "pool" not in each or RECIPES[name].cache == "paged"]


@cache
def model_of(name: str) -> GPT2:
    return GROUPS[name].model(name)


def as_recorded(name: str, **settings: Any) -> None:
    """Every token is the recorded one, or all but tied with it."""
    model, (prompts, params) = model_of(name), GROUPS[name].requests(name)
    with LLM(model, threads=1, **{"max_batch": 8, **settings}) as llm:
        done = llm.generate(prompts, params)
    recorded = json.loads(FILE.read_text(encoding="utf-8"))[name]
    other = [at for at, (one, tokens) in enumerate(zip(done, recorded, strict=True)) if [*one.token_ids] != tokens]
    assert len(other) <= len(done) // 50
    if other:
        oracle = lambda ids: forward_logits(model, ids)  # noqa: E731
        verify_tokens(oracle, [done[at] for at in other], [params[at] for at in other])


@pytest.mark.parametrize("engine, settings", CASES)
def test_odd_shapes(engine: str, settings: str) -> None:
    as_recorded("odd", engine=engine, **SETTINGS[settings])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_small_model(engine: str) -> None:
    as_recorded("small", engine=engine, max_len=64)


def test_the_shape_of_gpt2() -> None:
    as_recorded("gpt2", engine="naive")
