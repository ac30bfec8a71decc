"""Requests that come and go, with all that chapter 5 adds at once: each gets the tokens that it would get alone."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.queue import Queued
from nanoinfer.model.weights import random_model
from nanoinfer.outputs import RowReader
from nanoinfer.verify import verify_tokens
from tests.conftest import SMALL, STD
from tests.engine.drafting import MIXED, SCORED
from tests.engine.fake_graphed import watch

REQUESTS = 500


def load(random: Random, vocab_size: int, context: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts, many of which begin alike, and parameters of all kinds, for REQUESTS samples or a few more."""
    heads = [[random.randrange(vocab_size) for _ in range(context // 3)] for _ in range(3)]
    prompts: list[list[int]] = []
    params: list[SamplingParams] = []
    while sum(one.n for one in params) < REQUESTS:
        own = [random.randrange(vocab_size) for _ in range(random.randint(1, context // 6))]
        prompts.append(random.choice([[], *heads]) + own)
        kind = random.choice([*MIXED, *SCORED])
        count, samples = random.randint(1, context // 4), random.choice([1, 1, 1, 1, 4])
        params.append(replace(kind, seed=random.randrange(10**6), max_tokens=count, n=samples))
    return prompts, params


@pytest.mark.parametrize(
    ("engine", "fused"),
    [
        ("paged", None),
        pytest.param("paged", None, marks=pytest.mark.gpu, id="gpu-paged"),
        pytest.param("paged-graph", False, marks=pytest.mark.gpu, id="gpu-paged-graph-unfused"),
        pytest.param("paged-graph", True, marks=pytest.mark.gpu, id="gpu-paged-graph"),
    ],
)
def test_five_hundred_requests(
    engine: str, fused: bool | None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pool too small for their rows: preempted, shared, sampled several times, penalised, scored and cancelled."""
    monkeypatch.setattr("nanoinfer.cache.sharing.AHEAD", 4)
    random, device = Random(7), "cuda" if request.node.get_closest_marker("gpu") else "cpu"
    model = random_model(SMALL, seed=1, std=STD, device=device)
    llm = LLM(
        model, engine=engine, fused=fused, max_batch=12, max_batched_tokens=64, kv_blocks=16,
        prefix_caching=True, preemption=True,
    )  # fmt: skip
    core: Any = llm.core
    core.mixed = True
    llm.warm_up()
    asked, params = load(random, SMALL.vocab_size, SMALL.n_positions)
    waiting = llm.requests(asked, params)
    rows: list[Queued] = []
    evicted = list[int]()
    watch(core.blocks, "_evict", lambda: evicted.append(1))
    while waiting or core.busy:
        while waiting and random.random() < 0.8:
            rows.append(core.submit(waiting.pop(0)))
        if random.random() < 0.1:
            core.cancel(random.choice(rows))
        core.step()

    stats, blocks = core.stats, core.blocks
    done = [RowReader(row, llm.tokenizer).completion() for row in rows if not row.cancelled]
    proof = verify_tokens(llm.forward_logits, done, [params[each.index] for each in done])
    print(proof, stats, f"{len(evicted)} evictions")
    assert len(rows) >= REQUESTS
    assert min(len(rows) - len(done), stats.preemptions, len(evicted), proof.logprobs) > 10
    assert stats.cached_tokens > 1000
    assert blocks.available == 16
    llm.close()
