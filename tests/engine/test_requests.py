"""SamplingParams: what is refused, and in which words; and the requests that are made of them."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.requests import MAX_SEED
from nanoinfer.text.prompts import RequestMaker, sample_seed
from nanoinfer.text.tokenizer import gpt2_tokenizer

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "name, value",
    [
        *[("max_tokens", v) for v in (0, -1, 1.5, "3", None, True)],
        *[("n", v) for v in (0, 129, 1.5, None, True)],
        *[(f"{kind}_penalty", v) for kind in ("presence", "frequency") for v in (-2.01, 2.01, NAN, "1", None, True)],
        *[(name, v) for name in ("logprobs", "prompt_logprobs") for v in (-1, 21, 0.5, "5", True)],
        *[("temperature", v) for v in (-0.1, NAN, INF, "hot", None, True)],
        *[("top_k", v) for v in (-1, 2**31, 0.5, None)],
        *[("top_p", v) for v in (0, -0.5, 1.01, NAN, None)],
        *[("seed", v) for v in (-1, 2**63, 0.5, "x", True)],
        *[("stop", v) for v in ("", [""], [3], 7)],
        *[("stop_token_ids", v) for v in ("5", [-1], ["a"], 5, [True])],
        *[("ignore_eos", v) for v in (1, None)],
    ],
)
def test_refused(name: str, value: Any) -> None:
    """One sentence that names the argument and the value."""
    with pytest.raises(ValueError) as caught:
        SamplingParams(**{name: value})
    sentence = str(caught.value)
    assert sentence.startswith(f"{name} must ")
    assert "\n" not in sentence
    shown = value[0] if isinstance(value, list) else value
    assert repr(shown) in sentence


def test_edges_that_are_allowed() -> None:
    SamplingParams(max_tokens=1, temperature=0, top_k=2**31 - 1, top_p=1e-9, seed=2**63 - 1)
    SamplingParams(n=128, presence_penalty=-2, frequency_penalty=2.0, logprobs=0, prompt_logprobs=20)
    SamplingParams(max_tokens=0, prompt_logprobs=0)
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2]).stop_token_ids == (1, 2)
    assert SamplingParams(temperature=1).temperature == 1


def test_lists_are_copied() -> None:
    ids = [1, 2]
    params = SamplingParams(stop_token_ids=ids)
    ids.append(3)
    assert params.stop_token_ids == (1, 2)


def test_what_a_row_needs() -> None:
    """A filter is what may drop a token; a penalty is what generated tokens change."""
    for asked, filters, penalises in (
        ({"logprobs": 3}, False, False),
        ({"top_k": 1}, True, False),
        ({"top_p": 0.99}, True, False),
        ({"temperature": 0, "top_k": 1, "top_p": 0.5}, False, False),
        ({"presence_penalty": -0.1}, False, True),
        ({"frequency_penalty": 0.1}, False, True),
    ):
        params = SamplingParams(**asked)
        assert (params.filters, params.penalises) == (filters, penalises)


def maker(seed: int = 5) -> RequestMaker:
    return RequestMaker(gpt2_tokenizer(), 16, 50257, random.Random(seed))


def test_samples_of_a_prompt() -> None:
    """Side by side, alike but for the number, the seed, and the text in which each looks for its stop strings."""
    asked = [SamplingParams(n=3, stop="end"), SamplingParams(n=2, seed=7)]
    requests = maker().requests([[1, 2], [3]], asked)
    assert [(r.index, r.sample) for r in requests] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert len({id(r.text) for r in requests[:3]}) == 3
    assert requests[3].seed == 7
    for request, first in zip(requests, [requests[0]] * 3 + [requests[3]] * 2, strict=True):
        same = dataclasses.replace(request, sample=0, seed=first.seed, text=first.text)
        assert same == first
        assert request.seed == sample_seed(first.seed, request.sample)


def test_one_seed_is_drawn_for_a_prompt_whatever_its_samples_are() -> None:
    plain = maker().requests([[1], [2], [3]], SamplingParams())
    several = maker().requests([[1], [2], [3]], [SamplingParams(), SamplingParams(n=5), SamplingParams()])
    assert [r.seed for r in several if r.sample == 0] == [r.seed for r in plain]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**62, MAX_SEED])
def test_seeds_of_samples(seed: int) -> None:
    seeds = [sample_seed(seed, i) for i in range(128)]
    assert seeds[0] == seed
    assert all(0 <= s <= MAX_SEED for s in seeds)
    assert len(set(seeds)) == len({s & 0xFFFFFFFF for s in seeds}) == 128


def test_seeds_of_samples_are_pinned_and_those_of_small_seeds_never_meet() -> None:
    """A change of these numbers changes every sampled text of n > 1."""
    assert [sample_seed(3, i) for i in (1, 127)] == [5700357409661599246, 4522372152350590840]
    # seed + i * step = other + j * step (mod 2^63) needs seeds as far apart as a multiple of the step is from 0.
    distances = [min(s, 2**63 - s) for s in (sample_seed(0, i) for i in range(1, 128))]
    assert min(distances) > 2**32


def test_no_new_token() -> None:
    """A whole context may be scored; where tokens are to follow, there must be room for one."""
    scored = SamplingParams(max_tokens=0, prompt_logprobs=1)
    assert [r.limit for r in maker().requests([[1] * 16, [1]], scored)] == [0, 0]
    with pytest.raises(ValueError, match="prompt has 17 tokens, but the context is 16"):
        maker().requests([1] * 17, scored)
    with pytest.raises(ValueError, match="prompt 1 has 16 tokens and no room for a new one"):
        maker().requests([[1] * 16, [1] * 16], [scored, SamplingParams(prompt_logprobs=1)])
