"""The sampling rule against independent computations, and the CPU's filtered sampler against the rule."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanoinfer import LLM, SamplingParams
from nanoinfer.engine import cpu_sampling, sampling, scores
from nanoinfer.engine.samplers import SAMPLERS, sample
from nanoinfer.engine.sampling import gumbel, random_bits, sample_filtered, threshold
from nanoinfer.engine.state import BatchState
from nanoinfer.model.gpt2 import GPT2

V = 300


def rows_of(
    n: int,
    temperature: Any = 1.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    seed: Any = None,
    step: Any = None,
    device: str = "cpu",
) -> BatchState:
    """n rows; each parameter is one for all or a list; seeds and steps are random unless they are given."""
    generator = torch.Generator().manual_seed(0)
    rows = BatchState.empty(n, torch.device(device)).at(slice(0, n))
    rows.seed.copy_(torch.randint(0, 2**63 - 1, (n,), generator=generator))
    rows.step.copy_(torch.randint(0, 1024, (n,), generator=generator))
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed, "step": step}
    for name, value in given.items():
        if value is not None:
            getattr(rows, name).copy_(torch.as_tensor(value))
    return rows


def mixed(combinations: list[tuple[float, int, float]], copies: int = 1, device: str = "cpu") -> BatchState:
    """A row for each (temperature, top_k, top_p), `copies` times."""
    temperature, top_k, top_p = map(list, zip(*combinations * copies, strict=True))
    return rows_of(len(temperature), temperature, top_k, top_p, device=device)


def logits_of(n: int, width: int, std: float = 3.0, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return (torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * std).to(dtype)


def python_bits(seed: int, step: int, token_id: int) -> int:
    """The hash once more, on Python's integers."""
    word = 0xFFFFFFFF

    def mix(x: int) -> int:
        x ^= x >> 16
        x = x * 0x7FEB352D & word
        x ^= x >> 15
        x = x * 0x846CA68B & word
        return x ^ x >> 16

    first, second = (mix(mix(mix(seed & word ^ c) ^ seed >> 32) ^ step & word) for c in (0x9E3779B9, 0x85EBCA6B))
    return mix(mix(token_id ^ first) ^ second)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31), st.integers(0, 60000))
@settings(max_examples=200, deadline=None)
def test_bits_are_those_of_plain_integers(seed: int, step: int, token_id: int) -> None:
    got = random_bits(torch.tensor([seed]), torch.tensor([step]), torch.tensor([token_id]))
    assert int(got) == python_bits(seed, step, token_id)


def test_noise_is_finite_at_the_ends_of_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.tensor([[0, 1, 2**21, 2**22, 2**31, 2**32 - 2, 2**32 - 1]])
    monkeypatch.setattr(sampling, "random_bits", lambda seed, step, ids: ends)
    noise = gumbel(torch.tensor([0]), torch.tensor([0]), 7)[0]
    assert bool(noise.isfinite().all())
    assert noise.tolist() == sorted(noise.tolist(), reverse=True)  # few bits set: small u, high noise
    exact = [-math.log(-math.log1p(-((int(b) | 1) * 2.0**-32))) for b in ends[0, :5]]
    torch.testing.assert_close(noise[:5].double(), torch.tensor(exact, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed, step, shift", [(8, 3, 0), (7 + 2**32, 3, 0), (7, 4, 0), (7, 3, 1)])
def test_noise_of_neighbours_is_unrelated(seed: int, step: int, shift: int) -> None:
    """Seeds, steps and ids that follow each other give uncorrelated noise."""
    both = gumbel(torch.tensor([7, seed]), torch.tensor([3, step]), 40_000)
    both[1] = both[1].roll(shift)
    assert abs(float(torch.corrcoef(both)[0, 1])) < 4 / math.sqrt(40_000)


def kept_by_hand(logits: list[float], temperature: float, top_k: int, top_p: float) -> set[int]:
    """Top-k, then top-p, as a reader would do it with paper: ids from the most probable down."""
    scores = [x / temperature for x in logits]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    if top_k:
        kth = scores[order[min(top_k, len(order)) - 1]]
        order = [i for i in order if scores[i] >= kth]
    total = sum(math.exp(scores[i] - scores[order[0]]) for i in order)
    kept, reached = [], 0.0
    for i in order:
        if reached >= top_p and top_p < 1:
            break
        kept.append(i)
        reached += math.exp(scores[i] - scores[order[0]]) / total
    return {i for i in order if scores[i] >= scores[kept[-1]]}  # ties with the last one kept


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_kept_ids(data: st.DataObject) -> None:
    """Few, coarse logits, so that ties are common; top_p between reachable sums, so that rounding decides nothing."""
    logits = data.draw(st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=12))
    top_k, temperature = data.draw(st.integers(0, 14)), data.draw(st.sampled_from([0.5, 1.0, 2.0]))
    top_p = data.draw(st.sampled_from([1e-9, 0.0137, 0.2391, 0.5003, 0.8997, 0.9713, 1.0]))
    scores = torch.tensor([logits]) / temperature
    lowest = threshold(scores, torch.tensor([top_k], dtype=torch.int32), torch.tensor([top_p]))
    got = set((scores[0] >= lowest[0]).nonzero()[:, 0].tolist())
    assert got == kept_by_hand(logits, temperature, top_k, top_p)


def check_counts(tokens: Tensor, probabilities: Tensor) -> None:
    """How often each id came against how often it should, by chi-square; where it should not, it must not.

    The limit is the value that a true distribution passes once in 10,000 times (Wilson and Hilferty 1931).
    """
    counts, kept = Counter(tokens.tolist()), probabilities.nonzero()[:, 0].tolist()
    assert set(counts) <= set(kept)
    expected = (len(tokens) * probabilities).tolist()
    statistic = sum((counts[i] - expected[i]) ** 2 / expected[i] for i in kept)
    a = 2 / (9 * max(1, len(kept) - 1))
    assert statistic <= (len(kept) - 1) * (1 - a + 3.719 * math.sqrt(a)) ** 3 + 1e-6, "another distribution"


@pytest.mark.parametrize(
    "temperature, top_k, top_p",
    [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.5, 8, 1.0), (1.0, 0, 0.8), (0.9, 10, 0.9), (1.0, 1, 1.0)],
)
def test_distribution(temperature: float, top_k: int, top_p: float) -> None:
    """20,000 steps of one seed against the filtered distribution, computed apart; another temperature is noticed."""
    n, logits = 20_000, logits_of(1, 24, 1.5, seed=5)[0]
    sampler = sample_filtered if top_k or top_p < 1 else sample
    kept = sorted(kept_by_hand(logits.tolist(), temperature, top_k, top_p))

    def probabilities(temperature: float) -> Tensor:
        return torch.zeros(24).index_copy(0, torch.tensor(kept), (logits[kept] / temperature).softmax(0))

    tokens = sampler(logits.expand(n, 24), rows_of(n, temperature, top_k, top_p, 11, torch.arange(n)))
    check_counts(tokens, probabilities(temperature))
    if not top_k:
        with pytest.raises(AssertionError, match="another distribution"):
            check_counts(tokens, probabilities(1.1 * temperature))


KINDS = [(0.0, 0, 0.5), (0.7, 5, 1.0), (1.0, 0, 0.9), (1.3, 40, 0.8)]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_the_cpus_sampler_gives_the_same_tokens(data: st.DataObject) -> None:
    """Coarse logits tie often; rows of all kinds side by side."""
    B = data.draw(st.integers(1, 5))
    logits = logits_of(B, V, data.draw(st.sampled_from([0.1, 3.0, 30.0])), seed=data.draw(st.integers(0, 10**6)))
    if data.draw(st.booleans()):
        logits = logits.round()
    kind = st.tuples(
        st.sampled_from([0.0, 0.5, 0.8, 1.0, 2.0]),
        st.sampled_from([0, 1, 2, 40, 200, V, 1000]),
        st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    )
    rows = mixed([data.draw(kind) for _ in range(B)])
    rows.seed.add_(data.draw(st.integers(0, 1000)))
    assert torch.equal(cpu_sampling.sample_filtered(logits, rows), sampling.sample_filtered(logits, rows))


def test_the_cpus_noise_is_that_of_all_ids() -> None:
    """To the last bit, for both branches of the formula."""
    rows = rows_of(3, seed=[0, 7, 2**45 + 3], step=[0, 5, 900])
    ids = torch.stack([torch.randperm(50257)[:9000] for _ in range(3)])
    assert torch.equal(cpu_sampling.noise(rows, ids), gumbel(rows.seed, rows.step, 50257).gather(1, ids))


@pytest.mark.parametrize("top_k, plain", [(40, False), (0, True), (280, True)])
def test_the_cpus_sampler_sorts_few_ids(top_k: int, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(sampling, "sample_filtered", lambda *given: called.append(given) or given[0].argmax(-1))
    cpu_sampling.sample_filtered(logits_of(2, V), rows_of(2, 0.8, top_k, 0.9))
    assert bool(called) == plain


def test_engines_on_a_cpu_use_it(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    sevens = SAMPLERS._replace(filtered=lambda logits, rows: torch.full((len(logits),), 7))
    monkeypatch.setattr(scores, "SAMPLERS", sevens)
    done = LLM(small_model, engine="dense").generate([[1, 2]], SamplingParams(top_k=5, max_tokens=2, ignore_eos=True))
    assert done[0].token_ids == (7, 7)
