"""The meaning of "tokens equal": what passes, what is a near-tie, what is a mistake."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nanoinfer import Completion, Metrics, SamplingParams
from nanoinfer.engine.sampling import gumbel
from nanoinfer.verify import TOLERANCE, verify_tokens

GREEDY = SamplingParams(temperature=0)
V = 8


def completion(tokens: list[int], seed: int = 0) -> Completion:
    return Completion(0, (1, 2), tuple(tokens), "", "length", seed, Metrics(0.1, ()))


def oracle(*rows: list[float]) -> object:
    """An oracle whose logits before the new tokens are these rows, whatever the text."""

    def logits(token_ids: Tensor) -> Tensor:
        assert token_ids.shape == (1, 1 + len(rows))
        return torch.cat([torch.zeros(1, V), torch.tensor(rows, dtype=torch.float32)])[None]

    return logits


def row(best: int, behind: float = 1.0, second: int = 7, height: float = 1.0) -> list[float]:
    """Logits of at most `height`, the highest at `best`, the next `behind` below it at `second`."""
    values = [height - 5.0 * height] * V
    values[best], values[second] = height, height - behind
    return values


def test_equal_tokens_pass() -> None:
    proof = verify_tokens(oracle(row(3), row(5, behind=0.25)), [completion([3, 5])], GREEDY)  # type: ignore[arg-type]
    assert (proof.tokens, proof.near_ties) == (2, 0)
    assert proof.smallest_gap == pytest.approx(0.25)
    assert "2 tokens equal, 0 near-ties" in str(proof)


def test_a_wrong_token_is_named() -> None:
    with pytest.raises(AssertionError, match="prompt 0, new token 1: 7 was chosen, but the oracle chooses 5"):
        verify_tokens(oracle(row(3), row(5)), [completion([3, 7])], GREEDY)  # type: ignore[arg-type]


@pytest.mark.parametrize("height", [1.0, 20.0])
def test_near_ties_are_counted_and_grow_with_the_logits(height: float) -> None:
    """One in 2,000 tokens passes; how near is near goes by the largest logit, and is a little more than nothing."""
    largest = 4 * height  # row() goes down to -4 * height
    near = 0.5 * TOLERANCE * largest
    rows = [row(3, height=height)] * 1999
    chosen = [3] * 1999
    proof = verify_tokens(oracle(*rows, row(5, near, height=height)), [completion([*chosen, 7])], GREEDY)  # type: ignore[arg-type]
    assert proof.near_ties == 1
    far = row(5, 3 * TOLERANCE * largest, height=height)
    with pytest.raises(AssertionError, match="new token 1999"):
        verify_tokens(oracle(*rows, far), [completion([*chosen, 7])], GREEDY)  # type: ignore[arg-type]


def test_too_many_near_ties_fail() -> None:
    rows = [row(3)] * 998 + [row(5, 1e-5)] * 2
    with pytest.raises(AssertionError, match="2 of 1000 tokens are near-ties"):
        verify_tokens(oracle(*rows), [completion([3] * 998 + [7, 7])], GREEDY)  # type: ignore[arg-type]


def test_nan_is_a_mistake() -> None:
    bad = row(3)
    bad[7] = float("nan")
    with pytest.raises(AssertionError):
        verify_tokens(oracle(row(3), bad), [completion([3, 2])], GREEDY)  # type: ignore[arg-type]


def sampled(logits: list[float], params: SamplingParams, seed: int) -> int:
    """The rule by hand for one row at step 0."""
    scores = torch.tensor(logits) / params.temperature
    order = scores.argsort(descending=True)
    kept = order[: params.top_k or V]
    noisy = scores + gumbel(torch.tensor([seed]), torch.tensor([0]), V)[0]
    return int(kept[noisy[kept].argmax()])


@pytest.mark.parametrize("seed", range(20))
def test_sampled_tokens_follow_the_rule(seed: int) -> None:
    params = SamplingParams(temperature=0.7, top_k=3)
    logits = [0.1, 1.2, 0.9, -0.3, 0.5, 0.8, 1.1, 0.2]
    right = sampled(logits, params, seed)
    verify_tokens(oracle(logits), [completion([right], seed)], params)  # type: ignore[arg-type]
    for wrong in set(range(V)) - {right}:
        with pytest.raises(AssertionError):
            verify_tokens(oracle(logits), [completion([wrong], seed)], params)  # type: ignore[arg-type]


def test_an_id_at_the_filter_s_edge_may_be_kept_or_not() -> None:
    """Two ids that all but tie for the last place of top-k: rounding decides which is kept, and either is right."""
    logits = [2.0, 1.0, 1.0 - 1e-6, -3.0, -3.0, -3.0, -3.0, -3.0]
    params = SamplingParams(temperature=1.0, top_k=2)
    noise = gumbel(torch.arange(200), torch.zeros(200, dtype=torch.int64), V)
    seed = next(s for s in range(200) if int((torch.tensor(logits) + noise[s]).argmax()) == 2)
    flipped = [2.0, 1.0 - 1e-6, 1.0, *logits[3:]]
    many = [sampled(logits, params, seed), sampled(flipped, params, seed)]
    assert many[0] != many[1]
    rows = [[9.0, *[0.0] * 7]] * 1999
    for token in many:
        # The row in question comes first, at step 0; the other 1999 are certain, so that one near-tie is allowed.
        verify_tokens(oracle(logits, *rows), [completion([token, *_certain(rows, params, seed)], seed)], params)  # type: ignore[arg-type]


def _certain(rows: list[list[float]], params: SamplingParams, seed: int) -> list[int]:
    steps = torch.arange(1, len(rows) + 1)
    noise = gumbel(torch.full_like(steps, seed), steps, V)
    scores = torch.tensor(rows)
    kept = scores >= scores.sort(-1, descending=True).values[:, params.top_k - 1 : params.top_k]
    return [int(i) for i in (scores + noise).masked_fill(~kept, -torch.inf).argmax(-1)]
