"""SamplingParams: what is refused, and in which words; and the requests that are made of them."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.records import MAX_SEED
from nanoinfer.text.samples import SampleMaker, sample_seed
from nanoinfer.text.tokenizer import gpt2_tokenizer


@pytest.mark.parametrize(
    "name, value",
    [
        ("max_tokens", 0),  # without prompt_logprobs; other numbers are in test_bounds.py
        ("temperature", "hot"),
        *[("stop", v) for v in ("", [""], [3], 7)],
        *[("stop_token_ids", v) for v in ("5", b"5", [-1], ["a"], 5, [True])],
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
    SamplingParams(max_tokens=0, prompt_logprobs=0)
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2]).stop_token_ids == (1, 2)


def maker(seed: int = 5) -> SampleMaker:
    return SampleMaker(gpt2_tokenizer(), 16, 50257, random.Random(seed))


def test_samples_of_a_prompt() -> None:
    """Side by side, alike but for the number and the seed."""
    asked = [SamplingParams(n=3, stop="end"), SamplingParams(n=2, seed=7)]
    requests = maker().requests([[1, 2], [3]], asked)
    assert [(r.index, r.sample) for r in requests] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert requests[3].seed == 7
    for request, first in zip(requests, [requests[0]] * 3 + [requests[3]] * 2, strict=True):
        same = dataclasses.replace(request, sample=0, seed=first.seed)
        assert same == first
        assert request.seed == sample_seed(first.seed, request.sample)


def test_one_seed_is_drawn_for_a_prompt_whatever_its_samples_are() -> None:
    plain = maker().requests([[1], [2], [3]], SamplingParams())
    several = maker().requests([[1], [2], [3]], [SamplingParams(), SamplingParams(n=5), SamplingParams()])
    assert [r.seed for r in several if r.sample == 0] == [r.seed for r in plain]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**62, MAX_SEED])
def test_seeds_of_samples(seed: int) -> None:
    """The numbers that are pinned change every sampled text of n > 1, if they change."""
    assert [sample_seed(3, i) for i in (1, 127)] == [5700357409661599246, 4522372152350590840]
    seeds = [sample_seed(seed, i) for i in range(128)]
    assert seeds[0] == seed
    assert all(0 <= s <= MAX_SEED for s in seeds)
    assert len(set(seeds)) == len({s & 0xFFFFFFFF for s in seeds}) == 128


def test_no_new_token() -> None:
    """A whole context may be scored; where tokens are to follow, there must be room for one."""
    scored = SamplingParams(max_tokens=0, prompt_logprobs=1)
    assert [r.limit for r in maker().requests([[1] * 16, [1]], scored)] == [0, 0]
    with pytest.raises(ValueError, match="prompt has 17 tokens, but the context is 16"):
        maker().requests([1] * 17, scored)
    with pytest.raises(ValueError, match="prompt 1 has 16 tokens and no room for a new one"):
        maker().requests([[1] * 16, [1] * 16], [scored, SamplingParams(prompt_logprobs=1)])
