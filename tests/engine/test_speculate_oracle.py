"""Verification without any cache, the oracle of chapter 7, beside plain decoding and every engine: 10^5 tokens."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from nanoinfer import LLM, Completion, SamplingParams
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import NEAR_TIES_ALLOWED, verify_tokens
from tests.conftest import STD
from tests.engine.drafting import Right, Scripted, graphed, seen, speculating, texts_of

pytestmark = pytest.mark.long

SHAPE = ModelConfig(n_layer=2, n_head=2, n_embd=16, n_positions=64, vocab_size=97)
REQUESTS, TOKENS = 4800, 100_000


class Mixed(Scripted):
    """Of a row, drafts that are always right, never, or often; some end early, and some are longer than asked for."""

    def one(self, row: Any, most: int) -> list[int]:
        kind = row.request.seed % 4
        if kind == 0:
            return Right.one(self, row, most)  # type: ignore[arg-type]
        self.right = (0.0, 0.6, 0.9)[kind - 1]
        return super().one(row, most)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(SHAPE, seed=4, std=STD)


@pytest.fixture(scope="module")
def asked() -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts of all lengths; greedy and sampled, penalties, stop tokens, limits; half run to the context's end."""
    random = Random(8)
    begin = [random.randrange(97) for _ in range(40)]  # of one prompt in four
    prompts, params = [[random.randrange(97) for _ in range(random.randint(1, 63))] for _ in range(REQUESTS)], []
    prompts[::4] = [(begin + prompt)[: len(prompt)] for prompt in prompts[::4]]
    for seed in range(REQUESTS):
        scores: dict[str, Any] = {}
        if seed > 0.8 * REQUESTS:  # no captured step serves these, so the others come first
            scores = {"frequency_penalty": random.choice([0, 0.5]), "logprobs": random.choice([None, 1])}
        params.append(SamplingParams(
            temperature=random.choice([0, 0.8, 1.5]), top_k=random.choice([0, 0, 20]), top_p=random.choice([1, 1, 0.9]),
            seed=seed, max_tokens=random.choice([64, random.randint(1, 40)]), ignore_eos=True,
            stop_token_ids=random.sample(range(97), random.choice([0, 0, 2])), **scores,
        ))  # fmt: skip
    return prompts, params


@pytest.fixture(scope="module")
def plain(model: GPT2, asked: tuple[Any, Any]) -> list[Completion]:
    """Of the naive engine, without drafts."""
    done = LLM(model, engine="naive", max_batch=64).generate(*asked)
    assert sum(len(completion.token_ids) for completion in done) > TOKENS
    return done


ROOM = {"max_batch": 8, "kv_blocks": 24, "prefix_caching": True, "preemption": True, "prefill_chunk": 7}
ENGINES: dict[str, dict[str, Any]] = {
    "dense": {},
    "paged": {},
    "paged, little room": ROOM,
    "dense-graph": {"max_batch": 16, "read_multiple": 32},
    "paged-graph": {"max_batch": 16, "read_multiple": 32},
}


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_gives_the_tokens_of_plain_decoding(
    model: GPT2, asked: tuple[Any, Any], plain: list[Completion], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("nanoinfer.cache.sharing.AHEAD", 5)  # else a row reserves all that it can use
    texts, engine = texts_of(plain), name.partition(",")[0]
    if engine.endswith("-graph"):
        llm = graphed(model, engine, Mixed(texts, Random(2), vocab=97), **ENGINES[name])
    else:
        llm = speculating(model, Mixed(texts, Random(2), vocab=97), engine=engine, **{"max_batch": 32} | ENGINES[name])
    done, stats = llm.generate(*asked), llm.stats
    parted = sum(one != other for one, other in zip(seen(done), seen(plain), strict=True))
    print(name, stats, f"{parted} parted", verify_tokens(llm.forward_logits, done, asked[1]))
    assert parted <= NEAR_TIES_ALLOWED * TOKENS
    assert 0.2 < stats.accepted_tokens / stats.draft_tokens < 0.9
    assert stats.dropped_tokens > 20  # behind a stop token in the middle of what was accepted
    if "room" in name:
        assert min(stats.preemptions, stats.cached_tokens) > 100
    if engine.endswith("-graph"):
        assert stats.replayed_steps > 0.7 * stats.decode_steps  # type: ignore[attr-defined]
