"""SamplingParams: what is refused, and in which words."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from nanoinfer import SamplingParams

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "name, value",
    [
        *[("max_tokens", v) for v in (0, -1, 1.5, "3", None, True)],
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
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2]).stop_token_ids == (1, 2)
    assert SamplingParams(temperature=1).temperature == 1


def test_frozen() -> None:
    ids = [1, 2]
    params = SamplingParams(stop_token_ids=ids)
    ids.append(3)
    assert params.stop_token_ids == (1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.seed = 3  # type: ignore[misc]


def test_filters_is_what_may_drop_a_token() -> None:
    assert not SamplingParams().filters
    assert SamplingParams(top_k=1).filters
    assert SamplingParams(top_p=0.99).filters
    assert not SamplingParams(temperature=0, top_k=1, top_p=0.5).filters
