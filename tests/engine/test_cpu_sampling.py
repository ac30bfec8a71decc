"""The CPU's filtered sampler against the one that sorts: the same token for every row, also where scores tie."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer import LLM, SamplingParams
from nanoinfer.engine import cpu_sampling, sampling
from nanoinfer.engine.state import BatchState
from nanoinfer.model.gpt2 import GPT2

V = 300


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_the_same_tokens(data: st.DataObject) -> None:
    """Coarse logits tie often; rows of all kinds side by side."""
    B = data.draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    logits = torch.randn(B, V, generator=generator) * data.draw(st.sampled_from([0.1, 3.0, 30.0]))
    if data.draw(st.booleans()):
        logits = logits.round()
    rows = BatchState.empty(B, torch.device("cpu")).at(slice(0, B))
    rows.seed.copy_(torch.randint(0, 2**40, (B,), generator=generator))
    rows.step.copy_(torch.randint(0, 500, (B,), generator=generator))
    for row in range(B):
        rows.temperature[row] = data.draw(st.sampled_from([0.0, 0.5, 0.8, 1.0, 2.0]))
        rows.top_k[row] = data.draw(st.sampled_from([0, 1, 2, 40, 200, V, 1000]))
        rows.top_p[row] = data.draw(st.sampled_from([0.05, 0.5, 0.9, 1.0]))
    expected = sampling.sample_filtered(logits, rows)
    assert cpu_sampling.sample_filtered(logits, rows).tolist() == expected.tolist()


def test_the_noise_is_that_of_all_ids() -> None:
    """To the last bit, for both branches of the formula."""
    rows = BatchState.empty(3, torch.device("cpu")).at(slice(0, 3))
    rows.seed.copy_(torch.tensor([0, 7, 2**45 + 3]))
    rows.step.copy_(torch.tensor([0, 5, 900]))
    ids = torch.stack([torch.randperm(50257)[:9000] for _ in range(3)])
    whole = sampling.gumbel(rows.seed, rows.step, 50257)
    assert torch.equal(cpu_sampling.noise(rows, ids), whole.gather(1, ids))


@pytest.mark.parametrize(("top_k", "plain"), [(40, False), (0, True), (280, True)])
def test_few_ids_are_looked_at(top_k: int, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a top_k the sort of all ids is not called."""
    called = []
    original = sampling.sample_filtered
    monkeypatch.setattr(sampling, "sample_filtered", lambda *given: called.append(1) or original(*given))
    rows = BatchState.empty(2, torch.device("cpu")).at(slice(0, 2))
    rows.temperature.fill_(0.8)
    rows.top_k.fill_(top_k)
    rows.top_p.fill_(0.9)
    cpu_sampling.sample_filtered(torch.randn(2, V), rows)
    assert bool(called) == plain


def test_engines_on_a_cpu_use_it(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the text is what the plain sampler gives."""
    params = SamplingParams(temperature=0.8, top_k=5, seed=3, max_tokens=12)
    llm = LLM(small_model, engine="dense")
    used = llm.generate([[5, 7, 9]], params)
    assert llm.core.samplers.filtered is cpu_sampling.sample_filtered
    llm.core.samplers = sampling.SAMPLERS
    assert [done.token_ids for done in llm.generate([[5, 7, 9]], params)] == [done.token_ids for done in used]
