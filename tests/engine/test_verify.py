"""The meaning of "tokens equal": what passes, what is a near-tie, what is a mistake."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoinfer import Completion, Metrics, SamplingParams
from nanoinfer.engine.sampling import gumbel
from nanoinfer.requests import Logprobs
from nanoinfer.verify import TOLERANCE, Oracle, verify_tokens

GREEDY = SamplingParams(temperature=0)
V = 8


def completion(tokens: list[int], seed: int = 0) -> Completion:
    return Completion(0, (1, 2), tuple(tokens), "", "length", seed, Metrics(0.1, ()))


def oracle(*rows: list[float]) -> Oracle:
    """An oracle whose logits before the new tokens are these rows, whatever the text."""
    logits = torch.cat([torch.zeros(1, V), torch.tensor(rows, dtype=torch.float32)])[None]
    return lambda token_ids: logits


def row(best: int, behind: float = 1.0, second: int = 7, height: float = 1.0) -> list[float]:
    """Logits of at most `height`, the highest at `best`, the next `behind` below it at `second`."""
    values = [height - 5.0 * height] * V
    values[best], values[second] = height, height - behind
    return values


def test_equal_tokens_pass_and_a_wrong_one_is_named() -> None:
    proof = verify_tokens(oracle(row(3), row(5, behind=0.25)), [completion([3, 5])], GREEDY)
    assert (proof.tokens, proof.near_ties, proof.smallest_gap) == (2, 0, pytest.approx(0.25))
    with pytest.raises(AssertionError, match="prompt 0, new token 1: 7 was chosen, but the oracle chooses 5"):
        verify_tokens(oracle(row(3), row(5)), [completion([3, 7])], GREEDY)


@pytest.mark.parametrize("height", [1.0, 20.0])
def test_near_ties_are_counted_and_grow_with_the_logits(height: float) -> None:
    """One in 2,000 tokens passes; how near is near goes by the largest logit, and is a little more than nothing."""
    largest = 4 * height  # row() goes down to -4 * height
    near = 0.5 * TOLERANCE * largest
    rows = [row(3, height=height)] * 1999
    chosen = [3] * 1999
    proof = verify_tokens(oracle(*rows, row(5, near, height=height)), [completion([*chosen, 7])], GREEDY)
    assert proof.near_ties == 1
    far = row(5, 3 * TOLERANCE * largest, height=height)
    with pytest.raises(AssertionError, match="new token 1999"):
        verify_tokens(oracle(*rows, far), [completion([*chosen, 7])], GREEDY)


def test_too_many_near_ties_fail() -> None:
    rows = [row(3)] * 998 + [row(5, 1e-5)] * 2
    with pytest.raises(AssertionError, match="2 of 1000 tokens are near-ties"):
        verify_tokens(oracle(*rows), [completion([3] * 998 + [7, 7])], GREEDY)


def test_nan_is_a_mistake() -> None:
    bad = [*row(3)[:7], float("nan")]
    with pytest.raises(AssertionError):
        verify_tokens(oracle(row(3), bad), [completion([3, 2])], GREEDY)


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
    verify_tokens(oracle(logits), [completion([right], seed)], params)
    for wrong in set(range(V)) - {right}:
        with pytest.raises(AssertionError):
            verify_tokens(oracle(logits), [completion([wrong], seed)], params)


def test_an_id_at_the_filter_s_edge_may_be_kept_or_not() -> None:
    """Two ids that all but tie for the last place of top-k: rounding decides which is kept, and either is right."""
    logits, flipped = [2.0, 1.0, 1.0 - 1e-6, *[-3.0] * 5], [2.0, 1.0 - 1e-6, 1.0, *[-3.0] * 5]
    params = SamplingParams(temperature=1.0, top_k=2)
    noise = gumbel(torch.arange(200), torch.zeros(200, dtype=torch.int64), V)
    seed = next(s for s in range(200) if int((torch.tensor(logits) + noise[s]).argmax()) == 2)
    either = {sampled(logits, params, seed), sampled(flipped, params, seed)}
    assert len(either) == 2
    certain = [[99.0, *[0.0] * 7]] * 1999  # so that one near-tie is allowed
    for token in either:
        verify_tokens(oracle(logits, *certain), [completion([token, *[0] * 1999], seed)], params)


# Each token likes to come again at once, so that it matters whether it has been counted.
BIGRAMS = 2 * torch.randn(40, 40, generator=torch.Generator().manual_seed(3)) + 4 * torch.eye(40)
PENALISED = SamplingParams(temperature=0, presence_penalty=0.5, frequency_penalty=1.0, logprobs=3, prompt_logprobs=2)
BOTH = SamplingParams(temperature=0.6, top_k=12, presence_penalty=-0.5, frequency_penalty=0.7, logprobs=0)
PROMPT = (4, 4, 8, 15, 16, 23, 4)
MUTANTS = {
    "penalty of prompt tokens": ("was chosen", {"counted": PROMPT}),
    "penalty after temperature": ("was chosen", {"late": True}),
    "logprobs after temperature": ("logprobs of token", {"cooled": True}),
    "logprobs after penalties": ("logprobs of token", {"lowered": True}),
}


def bigrams(token_ids: Tensor) -> Tensor:
    """An oracle that goes by the last token alone."""
    return BIGRAMS[token_ids]


def written(
    params: SamplingParams,
    counted: tuple[int, ...] = (),
    late: bool = False,
    cooled: bool = False,
    lowered: bool = False,
) -> Completion:
    """What an engine over `bigrams` writes, token by token; the mistakes are the mutants'."""
    text, records, seed = list(PROMPT), [], 11
    temperature = params.temperature or 1.0
    for step in range(30):
        logits, new = BIGRAMS[text[-1]], text[len(PROMPT) :]
        penalty = torch.zeros(40)
        for token in set(seen := [*counted, *new]):
            penalty[token] = params.presence_penalty + params.frequency_penalty * seen.count(token)
        scores = logits / temperature - penalty if late else (logits - penalty) / temperature
        if params.temperature:
            scores = scores.masked_fill(scores < scores.topk(params.top_k).values[-1], -torch.inf)
            scores = scores + gumbel(torch.tensor([seed]), torch.tensor([step]), 40)[0]
        text.append(int(scores.argmax()))
        shown = logits / temperature if cooled else logits - penalty if lowered else logits
        records.append(record(shown, text[-1], params.logprobs or 0))
    scored = [record(BIGRAMS[a], b, params.prompt_logprobs or 0) for a, b in pairwise(PROMPT)]
    done = replace(completion(text[len(PROMPT) :], seed), prompt_token_ids=PROMPT, logprobs=tuple(records))
    return done if params.prompt_logprobs is None else replace(done, prompt_logprobs=(None, *scored))


def record(logits: Tensor, token_id: int, top: int) -> Logprobs:
    every = logits.log_softmax(-1)
    best = every.topk(top)
    return Logprobs(token_id, float(every[token_id]), tuple(zip(best.indices.tolist(), best.values.tolist())))  # noqa: B905


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_penalties_and_logprobs(name: str) -> None:
    words, mistake = MUTANTS[name]
    for params, count in (PENALISED, 30 + len(PROMPT) - 1), (BOTH, 30):
        proof = verify_tokens(bigrams, [written(params)], params)
        assert (proof.tokens, proof.near_ties, proof.logprobs) == (30, 0, count)
        if params.greedy and (set(mistake) & {"late", "cooled"}):
            continue  # there is no temperature
        with pytest.raises(AssertionError, match=words):
            verify_tokens(bigrams, [written(params, **mistake)], params)


def test_logprobs_are_there_if_they_were_asked_for() -> None:
    done = written(PENALISED)
    for kind, count in (("logprobs", 30), ("prompt_logprobs", 7)):
        with pytest.raises(AssertionError, match=f"prompt 0 has none {kind} of {count} tokens, asked for as"):
            verify_tokens(bigrams, [replace(done, **{kind: None})], PENALISED)
        with pytest.raises(AssertionError, match=f"prompt 0 has {count} {kind} of {count} tokens, asked for as None"):
            verify_tokens(bigrams, [done], replace(PENALISED, **{kind: None}))


def test_every_number_of_a_record_is_compared() -> None:
    """Nudged, swapped, left out, or NaN; of a prompt's tokens as of new ones."""
    done = written(PENALISED)
    right = done.logprobs[9]  # type: ignore[index]
    (a, p), (b, q), (c, r) = right.top
    wrong = [
        right._replace(token_id=right.token_id + 1),
        right._replace(logprob=right.logprob + 0.01),
        right._replace(top=((a, p), (b, q))),
        right._replace(top=((a, p), (b, q), (c, float("nan")))),
        right._replace(top=((b, p), (a, q), (c, r))),
    ]
    for each in wrong:
        with pytest.raises(AssertionError, match="prompt 0, logprobs of token 9: Logprobs"):
            verify_tokens(bigrams, [replace(done, logprobs=put(done.logprobs, 9, each))], PENALISED)
    for at, each in ((3, done.prompt_logprobs[2]), (3, None), (0, right)):  # type: ignore[index]
        with pytest.raises(AssertionError, match=f"prompt 0, prompt_logprobs of token {at}: "):
            verify_tokens(bigrams, [replace(done, prompt_logprobs=put(done.prompt_logprobs, at, each))], PENALISED)


def put(records: Any, at: int, new: Logprobs | None) -> Any:
    return (*records[:at], new, *records[at + 1 :])


def test_ids_that_tie_may_stand_in_for_each_other() -> None:
    logits = torch.tensor([0.0, 0.0, 0.0, 2.0, 0.0, 1.0, 1.0, 1.0]).expand(1, 3, V)
    every = logits[0, 0].log_softmax(-1)
    params = SamplingParams(temperature=0, logprobs=3)
    for tied in ((5, 6), (7, 5), (6, 7)):
        records = [Logprobs(3, float(every[3]), tuple((i, float(every[i])) for i in (3, *tied)))] * 2
        done = replace(completion([3, 3]), logprobs=tuple(records))
        assert verify_tokens(lambda text: logits, [done], params).logprobs == 2
    twice = [Logprobs(3, float(every[3]), tuple((i, float(every[i])) for i in (3, 5, 5)))] * 2
    with pytest.raises(AssertionError, match="logprobs of token 0"):
        verify_tokens(lambda text: logits, [replace(done, logprobs=tuple(twice))], params)


def test_a_prompt_alone() -> None:
    """Of max_tokens=0 there are no tokens to compare, but the prompt's logprobs; and no smallest gap."""
    params = replace(PENALISED, max_tokens=0, logprobs=None)
    done = replace(written(PENALISED), token_ids=(), logprobs=None)
    proof = verify_tokens(bigrams, [done], params)
    assert (proof.tokens, proof.logprobs, proof.smallest_gap) == (0, 6, float("inf"))
