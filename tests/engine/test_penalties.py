"""Penalties and logprobs: what the rule says, whoever the neighbours are, in captured steps and after a preemption."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from nanoinfer import LLM, Logprobs, SamplingParams
from nanoinfer.cache import sharing
from nanoinfer.engine import logprobs as logprobs_module
from nanoinfer.engine.logprobs import logprobs, width
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.sampling import sample_filtered
from nanoinfer.engine.state import BatchState, Begun
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request
from nanoinfer.verify import verify_tokens
from tests.conftest import prompts_of

V = 40


def test_padding_rows_do_no_harm(device: torch.device) -> None:
    """Several in one step: they count nothing anywhere, and rows without a part in the step keep what they had."""
    state, sampler = BatchState.empty(4, device), PenaltySampler(4, V, device, sample_filtered)
    for slot in range(2):
        params = SamplingParams(temperature=0.7 * slot, frequency_penalty=1.0)
        request = Request(slot, (1, 2, 3), params, 100 + slot, 12, frozenset())
        sampler.admit(slot, params)
        state.admit([Begun(slot, request.seed, 0, request.params)])
        state.row[slot], state.live[slot] = slot, 1
    sampler.logprobs[2:4] = -7.0
    for _ in range(3):
        sampler(torch.zeros(4, V, device=device), state.at(slice(0, 4)))
    assert sampler.counts.sum(1).tolist() == [3, 3, 0, 0, 0]
    assert bool((sampler.logprobs[2:4] == -7.0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logprobs_are_float32_whatever_the_logits_are_in(dtype: torch.dtype, device: torch.device) -> None:
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    expected = logits[0].double().log_softmax(-1)
    got = Logprobs.of_host(logprobs(logits, torch.tensor([7], device=device))[0].tolist(), 5)
    assert (got.token_id, got.logprob) == (7, pytest.approx(float(expected[7]), abs=1e-5))
    assert [p for _, p in got.top] == pytest.approx(expected.topk(5).values.tolist(), abs=1e-5)


@pytest.mark.parametrize("vocab_size", [8, 50_257, 2**24])
def test_ids_survive_float32(vocab_size: int) -> None:
    """Fewer than are asked for, those of GPT-2, and the largest that there may be."""
    logits = torch.zeros(1, vocab_size)
    logits[0, -1] = 9.0
    numbers = logprobs(logits, torch.tensor([vocab_size - 2]))
    assert numbers.shape == (1, width(vocab_size))
    assert Logprobs.of_host(numbers[0].tolist(), 0)[::2] == (vocab_size - 2, ())
    top = Logprobs.of_host(numbers[0].tolist(), 20).top
    assert top[0][0] == vocab_size - 1
    assert len({token for token, _ in top}) == min(20, vocab_size)


ECHO = SamplingParams(max_tokens=0, prompt_logprobs=5)
ASKED = [
    SamplingParams(temperature=0, max_tokens=30),
    SamplingParams(temperature=0.8, top_k=20, logprobs=0, max_tokens=30, n=3, prompt_logprobs=0),
    SamplingParams(temperature=1.2, top_p=0.9, frequency_penalty=-1.0, logprobs=2, max_tokens=30, n=2, ignore_eos=True),
    ECHO,
    # The youngest of those that go on: it has to give its room back.
    SamplingParams(temperature=0, presence_penalty=1.0, frequency_penalty=0.5, logprobs=20, max_tokens=30),
    ECHO,
]


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": "naive", "max_batch": 3},
        {"engine": "dense", "max_batch": 6, "prefill_chunk": 1},
        {"engine": "dense", "max_batch": 3, "prefill_chunk": 16},
    ],
)
def test_through_an_engine(small_model: GPT2, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    """Rows that wait and move, samples and echoes too: all tokens and records are right."""
    proven(small_model, monkeypatch, **settings)


def test_a_preempted_row_goes_on_as_if_nothing_had_been(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"max_batch": 6, "kv_blocks": 8, "preemption": True, "prefix_caching": True}
    assert proven(small_model, monkeypatch, engine="paged", **settings).stats.preemptions > 0


def proven(small_model: GPT2, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> LLM:
    heads, head = [], GPT2.head
    monkeypatch.setattr(GPT2, "head", lambda model, x: heads.append(len(x)) or head(model, x))
    monkeypatch.setattr(logprobs_module, "SLICE", 5)
    monkeypatch.setattr(sharing, "AHEAD", 1)
    llm = LLM(small_model, **settings)
    done = llm.generate(prompts_of([7, 33, 1, 12, 30, 1], seed=2), ASKED)
    assert max(heads) <= 6
    assert [(c.index, c.sample) for c in done] == [(i, k) for i, params in enumerate(ASKED) for k in range(params.n)]
    params = [ASKED[c.index] for c in done]
    proof = verify_tokens(LLM(small_model).forward_logits, done, params)
    assert (proof.tokens, proof.logprobs) == (210, 6 * 30 + 3 * 32 + 11)
    assert all(c.metrics.ttft_s > 0 and c.finish_reason == "length" for c in done)
    plain = [replace(each, presence_penalty=0, frequency_penalty=0) for each in params]
    with pytest.raises(AssertionError, match="was chosen"):  # penalties did choose, not the logits alone
        verify_tokens(LLM(small_model).forward_logits, done, plain)
    return llm
