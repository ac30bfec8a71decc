"""Penalties and logprobs: what the rule says, whoever the neighbours are, in captured steps and after a preemption."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoinfer import LLM, Logprobs, SamplingParams
from nanoinfer.engine import logprobs as logprobs_module
from nanoinfer.engine import scheduler
from nanoinfer.engine.logprobs import logprobs, width
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.sampling import sample_filtered
from nanoinfer.engine.state import BatchState
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request
from nanoinfer.verify import verify_tokens
from tests.conftest import prompts_of

CPU, V, STEPS = torch.device("cpu"), 40, 12
KINDS = {
    "plain": SamplingParams(temperature=0),
    "penalised": SamplingParams(temperature=0, presence_penalty=0.5, frequency_penalty=1.0),
    "seeded": SamplingParams(temperature=0.8, top_k=10),
    "both": SamplingParams(temperature=1.3, top_p=0.9, frequency_penalty=2.0),
    "rewarded": SamplingParams(temperature=0.7, presence_penalty=-1.5),
}


def request(index: int, kind: str) -> Request:
    return Request(index, (1, 2, 3), KINDS[kind], 100 + index, STEPS, frozenset())


def logits_of(index: int, step: int, device: torch.device = CPU) -> Tensor:
    """(V,) of one request before its token `step`: most of it is the same at every step, so that tokens come again."""
    drawn = [torch.randn(V, generator=torch.Generator().manual_seed(seed)) for seed in (index, 1000 * index + step + 7)]
    return (2 * drawn[0] + 0.3 * drawn[1]).to(device)


class Rows:
    """Rows 0..n-1 of a batch as the engine keeps them, without a model."""

    def __init__(self, requests: list[Request], device: torch.device = CPU, free: int = 0) -> None:
        self.requests, self.device = requests, device
        self.state = BatchState.empty(len(requests) + free, device)
        self.sampler = PenaltySampler(len(requests) + free, V, device, sample_filtered)
        self.tokens: dict[int, list[int]] = {request.index: [] for request in requests}
        for slot, each in enumerate(requests):
            self.admit(slot, each)

    def admit(self, slot: int, request: Request, kept: tuple[int, ...] = ()) -> None:
        self.sampler.admit(slot, request, kept)
        self.state.admit([slot], [request], [len(kept)])
        self.state.row[slot], self.state.live[slot] = slot, 1

    def step(self, padding: int = 0) -> None:
        """A token for each row; `padding` rows stand behind them, as in a captured step."""
        live = len(self.requests)
        rows = self.state.at(slice(0, live + padding))
        logits = [logits_of(each.index, len(self.tokens[each.index]), self.device) for each in self.requests]
        logits += [torch.zeros(V, device=self.device)] * padding
        tokens = self.sampler(torch.stack(logits), rows)
        rows.step.add_(rows.live)
        for each, token in zip(self.requests, tokens.tolist(), strict=False):
            self.tokens[each.index].append(token)


def alone(request: Request, device: torch.device = CPU) -> list[int]:
    rows = Rows([request], device)
    for _ in range(STEPS):
        rows.step()
    return rows.tokens[request.index]


@pytest.mark.parametrize("kind", ["both", "plain", "seeded"])
@pytest.mark.parametrize("kept", [0, 1, 6, 11])
def test_a_preempted_row_goes_on_as_if_nothing_had_been(kept: int, kind: str) -> None:
    """In another row, which others have left dirty, with what it had kept counted again."""
    own = request(1, kind)
    rows = Rows([request(2, "rewarded"), own])
    for _ in range(kept):
        rows.step()
    before = tuple(rows.tokens[1])
    rows.requests = [own]
    rows.admit(0, own, before)
    for _ in range(kept, STEPS):
        rows.step()
    assert rows.tokens[1] == alone(own)


def test_padding_rows_do_no_harm(device: torch.device) -> None:
    """Several in one step: they count nothing anywhere, and rows without a part in the step keep what they had."""
    requests = [request(i, kind) for i, kind in enumerate(("penalised", "both"))]
    rows = Rows(list(requests), device, free=4)
    rows.sampler.logprobs[2:6] = -7.0
    for _ in range(STEPS):
        rows.step(padding=3)
    for each in requests:
        assert rows.tokens[each.index] == alone(each, device)
    assert rows.sampler.counts.sum(1).tolist() == [STEPS, STEPS, 0, 0, 0, 0, 0]
    assert bool((rows.sampler.logprobs[2:6] == -7.0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logprobs_are_float32_whatever_the_logits_are_in(dtype: torch.dtype, device: torch.device) -> None:
    logits = logits_of(0, 0, device)[None].to(dtype)
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
ENGINES: dict[str, dict[str, Any]] = {
    "naive": {"engine": "naive", "max_batch": 3},
    "tokens": {"engine": "dense", "max_batch": 6, "prefill_chunk": 1},
    "pieces": {"engine": "dense", "max_batch": 3, "prefill_chunk": 16},
    "preempted": {"engine": "paged", "max_batch": 6, "kv_blocks": 8, "preemption": True, "prefix_caching": True},
}


@pytest.mark.parametrize("name", ENGINES)
def test_through_an_engine(small_model: GPT2, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Rows that wait, move and are computed again, samples and echoes too: all tokens and records are right."""
    heads, head = [], GPT2.head
    monkeypatch.setattr(GPT2, "head", lambda model, x: heads.append(len(x)) or head(model, x))
    monkeypatch.setattr(logprobs_module, "SLICE", 5)
    monkeypatch.setattr(scheduler, "AHEAD", 1)
    llm = LLM(small_model, **ENGINES[name])
    done = llm.generate(prompts_of([7, 33, 1, 12, 30, 1], seed=2), ASKED)
    assert max(heads) <= 6
    assert [(c.index, c.sample) for c in done] == [(i, k) for i, params in enumerate(ASKED) for k in range(params.n)]
    params = [ASKED[c.index] for c in done]
    proof = verify_tokens(LLM(small_model).forward_logits, done, params)
    assert (proof.tokens, proof.logprobs) == (210, 6 * 30 + 3 * 32 + 11)
    assert (llm.stats.preemptions > 0) == (name == "preempted")
    assert all(c.metrics.ttft_s > 0 and c.finish_reason == "length" for c in done)
    plain = [replace(each, presence_penalty=0, frequency_penalty=0) for each in params]
    with pytest.raises(AssertionError, match="was chosen"):  # penalties did choose, not the logits alone
        verify_tokens(LLM(small_model).forward_logits, done, plain)
