"""The sampling rule against independent computations: bits, noise, filters, and the distribution that comes out."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanoinfer.engine.sampling import greedy, gumbel, random_bits, sample, sample_filtered, threshold
from nanoinfer.engine.state import BatchState


def rows_of(
    seeds: list[int], steps: list[int], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> BatchState:
    n = len(seeds)
    rows = BatchState.empty(n, torch.device("cpu")).at(slice(0, n))
    rows.step.copy_(torch.tensor(steps))
    rows.seed.copy_(torch.tensor(seeds))
    rows.temperature.fill_(temperature)
    rows.top_k.fill_(top_k)
    rows.top_p.fill_(top_p)
    return rows


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


def test_bits_are_pinned() -> None:
    """A change of these numbers changes every sampled text of the book."""
    got = random_bits(torch.tensor([0, 1, 2**40]), torch.tensor([0, 5, 9]), torch.tensor([0, 17, 50256]))
    assert got.tolist() == [2273935162, 3077369717, 2051394391]


def test_noise_is_standard_gumbel() -> None:
    """Mean, variance and quantiles over a million draws; and finite everywhere."""
    noise = gumbel(torch.arange(20), torch.arange(20) * 3, 50_000).flatten().double()
    assert bool(noise.isfinite().all())
    assert abs(float(noise.mean()) - 0.5772157) < 4 * math.sqrt(math.pi**2 / 6 / len(noise))
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.02
    for q in (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.99999):
        share = float((noise < -math.log(-math.log(q))).double().mean())
        assert abs(share - q) < 5 * math.sqrt(q * (1 - q) / len(noise)), q


def test_noise_is_finite_at_the_ends_of_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.tensor([[0, 1, 2**21, 2**22, 2**31, 2**32 - 2, 2**32 - 1]])
    monkeypatch.setattr("nanoinfer.engine.sampling.random_bits", lambda seed, step, ids: ends)
    noise = gumbel(torch.tensor([0]), torch.tensor([0]), 7)[0]
    assert bool(noise.isfinite().all())
    assert noise.tolist() == sorted(noise.tolist(), reverse=True)  # few bits set: small u, high noise
    exact = [-math.log(-math.log1p(-((int(b) | 1) * 2.0**-32))) for b in ends[0, :5]]
    torch.testing.assert_close(noise[:5].double(), torch.tensor(exact, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_noise_of_neighbours_is_unrelated() -> None:
    """Seeds, steps and ids that follow each other give uncorrelated noise."""
    base = gumbel(torch.tensor([7]), torch.tensor([3]), 40_000)[0]
    others = {
        "next seed": gumbel(torch.tensor([8]), torch.tensor([3]), 40_000)[0],
        "seed + 2^32": gumbel(torch.tensor([7 + 2**32]), torch.tensor([3]), 40_000)[0],
        "next step": gumbel(torch.tensor([7]), torch.tensor([4]), 40_000)[0],
        "next id": base.roll(1),
    }
    for name, other in others.items():
        correlation = float(torch.corrcoef(torch.stack([base, other]))[0, 1])
        assert abs(correlation) < 4 / math.sqrt(40_000), name


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
    top_p = data.draw(st.sampled_from([0.0137, 0.2391, 0.5003, 0.8997, 0.9713, 1.0]))
    scores = torch.tensor([logits]) / temperature
    lowest = threshold(scores, torch.tensor([top_k], dtype=torch.int32), torch.tensor([top_p]))
    got = set((scores[0] >= lowest[0]).nonzero()[:, 0].tolist())
    expected = kept_by_hand(logits, temperature, top_k, top_p)
    assert got == expected


def test_top_p_keeps_the_id_that_crosses() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    for top_p, kept in ((0.4, 1), (0.6, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4), (1e-9, 1)):
        lowest = threshold(probs.log(), torch.tensor([0], dtype=torch.int32), torch.tensor([top_p]))
        assert int((probs.log() >= lowest).sum()) == kept, top_p


def test_top_p_works_on_what_top_k_left() -> None:
    """0.5 and 0.3 alone have 0.62 and 0.38: top_p = 0.6 keeps one of them, where of all four it would keep two."""
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    both = threshold(logits, torch.tensor([2], dtype=torch.int32), torch.tensor([0.6]))
    assert int((logits >= both).sum()) == 1


def chi_square_limit(freedom: int) -> float:
    """The value that a true distribution passes once in 10,000 times (Wilson and Hilferty 1931)."""
    a = 2 / (9 * freedom)
    return freedom * (1 - a + 3.719 * math.sqrt(a)) ** 3


@pytest.mark.parametrize(
    "temperature, top_k, top_p",
    [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.5, 8, 1.0), (1.0, 0, 0.8), (0.9, 10, 0.9), (1.0, 1, 1.0)],
)
def test_distribution(temperature: float, top_k: int, top_p: float) -> None:
    """20,000 steps of one seed against the filtered distribution, computed apart, by chi-square."""
    n, logits = 20_000, torch.randn(24, generator=torch.Generator().manual_seed(5)) * 1.5
    rows = rows_of([11] * n, list(range(n)), temperature, top_k, top_p)
    sampler = sample_filtered if top_k or top_p < 1 else sample
    counts = Counter(sampler(logits.expand(n, 24), rows).tolist())
    kept = kept_by_hand(logits.tolist(), temperature, top_k, top_p)
    assert set(counts) <= kept
    weights = {i: math.exp(float(logits[i]) / temperature) for i in kept}
    expected = {i: n * w / sum(weights.values()) for i, w in weights.items()}
    statistic = sum((counts[i] - e) ** 2 / e for i, e in expected.items())
    if len(kept) > 1:
        assert statistic < chi_square_limit(len(kept) - 1)


def test_the_chi_square_can_fail() -> None:
    """The same statistic against a distribution at another temperature is far outside."""
    n, logits = 20_000, torch.randn(24, generator=torch.Generator().manual_seed(5)) * 1.5
    counts = Counter(sample(logits.expand(n, 24), rows_of([11] * n, list(range(n)), 1.05)).tolist())
    weights = logits.exp()
    expected = n * weights / weights.sum()
    assert sum((counts[i] - float(e)) ** 2 / float(e) for i, e in enumerate(expected)) > chi_square_limit(23)


def many(logits: Tensor) -> BatchState:
    """Rows of mixed settings."""
    n = len(logits)
    generator = torch.Generator().manual_seed(0)
    rows = BatchState.empty(n, torch.device("cpu")).at(slice(0, n))
    rows.step.copy_(torch.randint(0, 99, (n,), generator=generator))
    rows.seed.copy_(torch.randint(0, 2**62, (n,), generator=generator))
    rows.temperature.copy_(torch.tensor([0.0, 0.7, 1.0, 1.3]).repeat(n)[:n])
    rows.top_k.copy_(torch.tensor([0, 5, 0, 40]).repeat(n)[:n])
    rows.top_p.copy_(torch.tensor([0.5, 1.0, 0.9, 0.8]).repeat(n)[:n])
    return rows


def test_a_row_depends_on_itself_alone() -> None:
    logits = torch.randn(12, 500, generator=torch.Generator().manual_seed(1)) * 3
    rows = many(logits)
    together = sample_filtered(logits, rows)
    for i in range(12):
        assert sample_filtered(logits[i : i + 1], rows.at(torch.tensor([i]))) == together[i]
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    assert torch.equal(sample_filtered(logits[order], rows.at(order)), together[order])


def test_the_choice_of_sampler_changes_no_token() -> None:
    """Greedy rows under a sampling neighbour, unfiltered rows beside filtered ones."""
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(1))
    cold = rows_of(list(range(6)), [0] * 6, temperature=0.0, top_k=3, top_p=0.5)
    assert torch.equal(sample(logits, cold), greedy(logits, cold))
    assert torch.equal(sample_filtered(logits, cold), greedy(logits, cold))
    open_rows = rows_of(list(range(6)), [4] * 6, temperature=0.8)
    assert torch.equal(sample_filtered(logits, open_rows), sample(logits, open_rows))


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(1, 50_257)
    logits[0, [7, 900, 50_256]] = 1.0
    assert int(greedy(logits, rows_of([0], [0]))) == 7


@pytest.mark.gpu
def test_gpu_gives_the_same_tokens() -> None:
    """Same bits; the logarithm may differ in its last bit, so a near-tie may flip: none does on 4,000 rows here."""
    logits = torch.randn(400, 5_000, generator=torch.Generator().manual_seed(3)) * 2
    rows = many(logits)
    on_gpu = BatchState(rows.integers.cuda(), rows.floats.cuda())
    ids = torch.arange(1000)
    bits = random_bits(rows.seed[:, None], rows.step[:, None], ids)
    assert torch.equal(bits, random_bits(on_gpu.seed[:, None], on_gpu.step[:, None], ids.cuda()).cpu())
    assert torch.equal(sample_filtered(logits.cuda(), on_gpu).cpu(), sample_filtered(logits, rows))


def test_temperature_divides() -> None:
    """At a low temperature the highest logit always wins; at a high one nearly every id does now and then."""
    logits = torch.linspace(0, 1, 10).expand(300, 10)
    cold = sample(logits, rows_of([1] * 300, list(range(300)), temperature=0.005))
    hot = sample(logits, rows_of([1] * 300, list(range(300)), temperature=100.0))
    assert set(cold.tolist()) == {9}
    assert len(set(hot.tolist())) == 10
