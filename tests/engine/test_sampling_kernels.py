"""The sampling kernel against the rule in PyTorch. Logits stand between zones of +inf, which a read past a row would
choose.

Noise comes from the same bits, but a logarithm may differ in its last bit, and probabilities are added up in another
order. So a token must be the rule's own, or a near-tie: its score within 1e-5 of the best one's, where a top_p that is
off by 1e-5 may keep one id more or fewer. Near-ties are counted, and more than 1 in 1,000 fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoinfer.engine import samplers, sampling
from nanoinfer.engine.state import BatchState
from tests.engine.kernel_cases import DEVICE, INTERPRETED, here
from tests.engine.test_sampling import logits_of
from tests.engine.test_sampling import mixed as mixed_on
from tests.engine.test_sampling import rows_of as rows_on

triton = pytest.importorskip("triton", reason="there are no wheels of Triton here")
kernels = pytest.importorskip("nanoinfer.kernels.sampling")
tl, random_bits, _gumbel = triton.language, kernels.random_bits, kernels._gumbel

pytestmark = here
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
INF = float("inf")
TOLERANCE = 1e-5
V = 9000  # more than one tile, and no multiple of anything


rows_of, mixed = partial(rows_on, device=DEVICE), partial(mixed_on, device=DEVICE)


def guarded(logits: Tensor, padding: int = 0) -> Tensor:
    """The same logits (B, V) on the device, rows `padding` further apart, with +inf before, between and after them."""
    B, width = logits.shape
    whole = torch.full((B + 2, width + padding), INF, dtype=logits.dtype, device=DEVICE)
    whole[1:-1, :width] = logits.to(DEVICE)
    return whole[1:-1, :width]


def near_ties(logits: Tensor, rows: BatchState, tokens: Tensor) -> int:
    """Hold tokens (B,) against the rule in PyTorch; the number of near-ties. AssertionError for more than these."""
    logits = logits.to(DEVICE).float()
    plain = sampling.scaled(logits, rows.temperature)
    differ = tokens != sampling.sample_filtered(logits, rows)
    assert bool(((tokens >= 0) & (tokens < logits.shape[1])).all())
    scores, chosen = sampling.noisy(plain, rows), tokens[:, None]
    loose, strict = (sampling.threshold(plain, rows.top_k, rows.top_p * (1 + t)) for t in (TOLERANCE, -TOLERANCE))
    ahead = scores.masked_fill(plain < strict, -INF).amax(-1) - scores.gather(1, chosen)[:, 0]  # (B,)
    wrong = differ & ~((plain.gather(1, chosen) >= loose)[:, 0] & (ahead <= TOLERANCE * scores.abs().amax(-1)))
    assert not wrong.any(), f"rows {wrong.nonzero()[:, 0].tolist()}"
    return int(differ.sum())


def check(logits: Tensor, rows: BatchState, padding: int = 0) -> Tensor:
    """The kernel's tokens of these logits, after they were held against the rule."""
    tokens: Tensor = kernels.sample(guarded(logits, padding), rows)
    flips = near_ties(logits, rows, tokens)
    assert flips <= max(1, len(tokens) // 1000), f"{flips} near-ties"
    return tokens


@triton.jit
def _noise_kernel(seed, step, ids, bits, noise, N: tl.constexpr):  # noqa: ANN001, ANN202
    at = tl.arange(0, N)
    seed, step, token = tl.load(seed), tl.load(step), tl.load(ids + at)
    tl.store(bits + at, random_bits(seed, step, token).to(tl.int64))
    tl.store(noise + at, _gumbel(seed, step, token))


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 + 5, 2**63 - 1])
@pytest.mark.parametrize("step", [0, 7, 2**31 - 1])
def test_the_same_bits_and_noise(seed: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ids at random, and of two that seed 0 and step 0 give the bits 0x00000006 and 0xfffffffe."""
    ids = torch.cat([torch.tensor([0, 1, 50_256, 108_367_106, 117_945_068, 2**31 - 1]), torch.arange(1000, 5090)])
    ids = ids.to(DEVICE)
    arguments = torch.tensor([seed], device=DEVICE), torch.tensor([step], device=DEVICE)
    bits, noise = torch.empty_like(ids), torch.empty(len(ids), device=DEVICE)
    _noise_kernel[(1,)](*arguments, ids, bits, noise, N=len(ids))
    assert torch.equal(bits, sampling.random_bits(*arguments, ids))
    monkeypatch.setattr(sampling, "random_bits", lambda seed, step, _: bits)
    torch.testing.assert_close(noise, sampling.gumbel(*arguments, len(ids)), rtol=1e-6, atol=1e-6)
    if seed == step == 0:
        assert bits[3:5].tolist() == [0x00000006, 0xFFFFFFFE]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 2, 65, V])
def test_the_same_tokens(width: int, dtype: torch.dtype) -> None:
    """Rows of all kinds in one launch: greedy, unfiltered, top-k alone, top-p alone, both; top_k around V."""
    kinds = list(itertools.product((0.0, 0.8), (0, 5, width - 1, width + 1), (1e-9, 0.9, 1.0)))
    check(logits_of(len(kinds), width, dtype=dtype), mixed(kinds), padding=47)


def with_ids(ids: Any, value: float, others: float = -INF) -> Tensor:
    """Four rows of which some ids have one logit, and all others another."""
    logits = torch.full((4, V), others)
    logits[:, ids] = value
    return logits


DIFFICULT: dict[str, Callable[[Tensor], Tensor]] = {  # what is made of four rows of V logits
    "flat": lambda x: x / 150,
    "peaked": lambda x: x * 10,
    "all equal": lambda x: torch.full_like(x, 3.0),
    "more equal than a list has room for": lambda x: torch.full((4, 2 * V), 3.0),
    "in steps of 0.1": lambda x: (x * 10).round() / 10,
    "mostly -inf": lambda x: x.index_fill(1, torch.arange(100, V), -INF),
    "one id": lambda x: with_ids(8999, 1.0),
    "three huge ids": lambda x: with_ids([5, 600, 8000], 1e20),
    "+inf": lambda x: x.index_fill(1, torch.tensor([50, 8500]), INF),
    "near the limits": lambda x: x * 1e37,
    "denormal": lambda x: x * 1e-40,
    "all -inf": lambda x: torch.full_like(x, -INF),
    "ends of float16": lambda x: with_ids(4321, 60_000.0, -60_000.0).half(),
    "ends in bfloat16": lambda x: with_ids(4321, 60_000.0, -60_000.0).bfloat16(),
    "ascending": lambda x: x.sort(-1).values,
    "descending": lambda x: x.sort(-1, descending=True).values,
}


@pytest.mark.parametrize("name", DIFFICULT)
def test_difficult_rows(name: str) -> None:
    """Ties at the threshold, infinities and numbers at the ends of a type, under each kind of filter.

    Flat rows keep more than a list holds, and the search runs over the row; peaked ones keep one id.
    """
    kinds = [(0.7, 50, 0.9), (0.7, 0, 0.9), (1.3, 50, 1.0), (0.7, 4000, 0.3)]
    check(DIFFICULT[name](logits_of(4, V)), mixed(kinds))


def test_equal_scores_go_to_the_lowest_id_in_a_list_too() -> None:
    """Noise is lost in logits of 1e20. A list is not in the order of ids: here the lowest stands last of 3,001."""
    logits = logits_of(1, 30_000)
    for start in range(8192, 30_000, 8192)[:3]:
        logits[:, start : start + 1000] = 1e20
    logits[:, 5000] = 1e20
    assert check(logits, rows_of(1, 0.7, 50)).tolist() == [5000]


def test_nan_neither_hangs_nor_is_chosen() -> None:
    """PyTorch's argmax would choose the NaN; here the row is sampled as if that id were not there."""
    logits = logits_of(4, V)
    logits[:, 40:8000:3] = float("nan")
    rows = mixed([(0.7, 50, 0.9), (0.7, 0, 0.9), (0.0, 0, 1.0), (0.7, 4000, 1.0)])
    tokens = kernels.sample(guarded(logits), rows)
    assert near_ties(logits.nan_to_num(-INF, INF, -INF), rows, tokens) == 0
    nothing = guarded(torch.full((4, V), float("nan")))
    assert kernels.sample(nothing, rows).tolist() == [0] * 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy(dtype: torch.dtype) -> None:
    """Whatever the filters; among equals the lowest id, also across tiles, and none of the padding."""
    logits = logits_of(6, V, dtype=dtype)
    logits[1] = 2.0
    logits[2, [8999, 8300, 77, 1101]] = 30.0
    logits[3] = -INF
    expected = samplers.greedy(logits.to(DEVICE), rows_of(6))
    assert expected[1:4].tolist() == [0, 77, 0]
    for rows in (rows_of(6, 0.0), rows_of(6, 0.0, 3, 0.5)):
        assert torch.equal(kernels.sample(guarded(logits, padding=3), rows), expected)


def test_rows_may_lie_anywhere() -> None:
    """In a matrix of another order of strides, and spread out."""
    kinds = [(0.0, 0, 1.0), (0.8, 50, 0.95), (0.8, 0, 1.0), (1.2, 0, 0.9), (1.0, 7, 1.0)]
    logits, rows = logits_of(5, 3000), mixed(kinds)
    together = check(logits, rows)
    transposed = guarded(logits).T.contiguous().T
    apart = torch.stack([guarded(logits), torch.full((5, 3000), INF, device=DEVICE)], 1)[:, 0]
    for other, strides in ((transposed, (1, 5)), (apart, (6000, 1))):
        assert other.stride() == strides
        assert torch.equal(kernels.sample(other, rows), together)


@pytest.mark.parametrize("field, change", [("step", 1), ("top_k", 1), ("top_k", -1), ("temperature", -0.7)])
def test_the_comparison_can_fail(field: str, change: float) -> None:
    """Noise of the next step, a filter that keeps one id more or fewer, another temperature."""
    logits, rows = logits_of(12, 400, std=1.0, dtype=torch.bfloat16), rows_of(12, 0.8, 4)
    other = rows_of(12, 0.8, 4)
    getattr(other, field).add_(change)
    with pytest.raises(AssertionError, match="rows"):
        near_ties(logits, rows, kernels.sample(guarded(logits), other))


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="needs the compiled kernel")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("std", [0.3, 3.0])
def test_gpu_at_gpt2s_size(std: float, dtype: torch.dtype) -> None:
    """512 rows of GPT-2's vocabulary in its padded width."""
    kinds = list(itertools.product((0.0, 0.8, 1.3), (0, 1, 50, 1000, 50_257), (0.1, 0.95, 1.0)))
    rows = mixed(kinds, copies=11)
    check(logits_of(len(rows.seed), 50_257, std, dtype), rows, padding=47)
