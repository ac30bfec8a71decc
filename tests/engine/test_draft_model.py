"""A smaller model that drafts, with a cache of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from tests.conftest import STD, prompts_of
from tests.engine.drafting import FREE, LENGTHS, MIXED, SCORED, seen


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("params", [MIXED, MIXED[:1] * 5], ids=["sampled", "greedy"])
def test_the_model_itself_is_always_right(small_model: GPT2, plain: LLM, k: int, params: list[SamplingParams]) -> None:
    """Positions, noise and the tokens behind a fully accepted run: where one is off, acceptance falls below 1."""
    prompts = prompts_of(LENGTHS)
    llm = LLM(small_model, engine="dense", max_batch=3, speculate=small_model, draft_tokens=k, adaptive_drafts=False)
    assert seen(llm.generate(prompts, params)) == seen(plain.generate(prompts, params))
    assert llm.stats.accepted_tokens == llm.stats.draft_tokens > 50


@pytest.mark.parametrize("engine", ["dense", "paged"])
@pytest.mark.parametrize("positions", [100, 50])
def test_a_stranger_changes_no_token(small_model: GPT2, plain: LLM, engine: str, positions: int) -> None:
    """Nor does one whose context is shorter."""
    shape = ModelConfig(n_layer=1, n_head=2, n_embd=16, n_positions=positions, vocab_size=211)
    stranger = random_model(shape, seed=7, std=0.02)
    prompts, params = prompts_of(LENGTHS), [*MIXED[:3], *SCORED[2:4]]
    llm = LLM(small_model, engine=engine, max_batch=3, speculate=stranger, max_batched_tokens=20, adaptive_drafts=False)
    assert seen(llm.generate(prompts, params)) == seen(plain.generate(prompts, params))
    assert llm.stats.draft_tokens > 0
    assert llm.stats.accepted_tokens < 0.3 * llm.stats.draft_tokens


@pytest.mark.parametrize("penalties", [False, True])
def test_beside_preemption_and_penalties(
    small_model: GPT2, plain: LLM, monkeypatch: pytest.MonkeyPatch, penalties: bool
) -> None:
    """Beside penalties nobody drafts. Its cache of a row that comes back is as good as before."""
    monkeypatch.setattr("nanoinfer.cache.sharing.AHEAD", 5)  # rows are admitted with little room
    others = [SCORED[0], SCORED[2]] if penalties else [MIXED[1], MIXED[4]]
    prompts = prompts_of([30, 20, 12, 25, 9, 31, 6])
    params = [MIXED[0], *others, MIXED[2], MIXED[4], MIXED[0], MIXED[1]]
    llm = LLM(
        small_model, engine="paged", max_batch=4, speculate=small_model, preemption=True, kv_blocks=10,
        max_batched_tokens=32, prefill_chunk=9, adaptive_drafts=False,
    )  # fmt: skip
    assert seen(llm.generate(prompts, params)) == seen(plain.generate(prompts, params))
    assert llm.stats.preemptions > 0
    assert llm.stats.accepted_tokens == llm.stats.draft_tokens > 20


def test_its_cache_holds_the_text_and_no_rejected_token(small_model: GPT2) -> None:
    shape = ModelConfig(n_layer=2, n_head=2, n_embd=16, n_positions=100, vocab_size=211)
    draft = random_model(shape, seed=7, std=STD)
    llm = LLM(small_model, engine="dense", max_batch=2, speculate=draft)
    drafter: Any = llm.core.drafter  # type: ignore[attr-defined]
    checked = 0
    params = SamplingParams(temperature=0, seed=1, max_tokens=30, **FREE)
    for _ in llm.core.generate(llm.requests(prompts_of([9, 20, 4]), params)):
        for row in llm.core.running:
            if text := row.tokens[: row.learned]:
                fresh = LLM(draft, engine="dense", max_batch=1)
                cache: Any = fresh.core.cache
                cache.release = id
                fresh.generate(text, SamplingParams(temperature=0, max_tokens=1))
                for own, other in ((drafter.cache.k, cache.k), (drafter.cache.v, cache.v)):
                    torch.testing.assert_close(own[:, row.row, : row.learned], other[:, 0, : row.learned])
                checked += 1
    assert checked > 30
