"""Every number of a request is held to the machine type that it ends in, at the edges and beyond them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from nanoinfer import config
from nanoinfer.config import EngineConfig
from nanoinfer.engine.state import BatchState, Begun
from nanoinfer.records import Bounds
from nanoinfer.requests import BOUNDS, SamplingParams
from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.errors import ApiError
from nanoinfer.serve.fields import FIELDS, read

TYPES = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32}
NUMBERS = [True, "1", None, math.nan, math.inf, -math.inf, 0, -0.0, 1.5, 10**400, -(10**400)]
FLOATS = [5e-324, 1e-45, 1e-38, 3.4028234e38, 3.4028236e38, 3.5e38, 1e39, 1.7e308]
INTS = [2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64]


def tried(bounds: Bounds) -> list[Any]:
    """Values at each bound, before and behind it, and in and beyond every machine type."""
    low, high = bounds.low, bounds.high
    if bounds.held == "float32":
        around = [
            each for edge in (low, high) for each in (edge, math.nextafter(edge, -1e9), math.nextafter(edge, 1e9))
        ]
        return [*around, *NUMBERS, *FLOATS, *map(float.__neg__, FLOATS)]
    around = [int(edge) + step for edge in (low, high) for step in (-1, 0, 1)]
    return [*around, *NUMBERS, *INTS, *map(int.__neg__, INTS)]


def fits(bounds: Bounds, value: Any) -> bool:
    """Whether PyTorch holds the value in the field's type without leaving its bounds."""
    kinds = (int,) if bounds.held.startswith("int") else (int, float)
    if type(value) not in kinds or not bounds.low <= value <= bounds.high:
        return False
    held = torch.tensor(value, dtype=TYPES[bounds.held]).item()
    return bounds.low <= held <= bounds.high


def given(name: str, value: Any) -> dict[str, Any]:
    more = {"prompt_logprobs": 0} if name == "max_tokens" else {}
    return {name: [value] if name == "stop_token_ids" else value, **more}


CASES = [(name, value) for name, bounds in BOUNDS.items() for value in tried(bounds)]


@pytest.mark.parametrize("name, value", CASES)
def test_a_value_is_refused_by_name_or_reaches_the_batch(name: str, value: Any) -> None:
    right = fits(BOUNDS[name], value) or (value is None and getattr(SamplingParams, name) is None)
    if not right:
        with pytest.raises(ValueError, match=name):
            SamplingParams(**given(name, value))
        return
    params = SamplingParams(**given(name, value))
    seed = params.seed if params.seed is not None else 1
    state = BatchState.empty(1, torch.device("cpu"))
    state.admit([Begun(0, seed, 0, params)])
    assert bool(state.floats.isfinite().all())
    assert state.seed[0] == seed
    assert state.top_k[0] == params.top_k


@pytest.mark.parametrize("name, value", [case for case in CASES if case[0] in FIELDS and case[0] != "max_tokens"])
def test_the_server_agrees_with_the_library(name: str, value: Any) -> None:
    try:
        SamplingParams(**given(name, value))
        right = True
    except ValueError:
        right = value is None and name != "stop_token_ids"  # JSON's null is the default
    body = {"model": "tiny", "prompt": "a", **given(name, value)}
    if right:
        read(body, ServeConfig(), [0])
        return
    with pytest.raises(ApiError) as refused:
        read(body, ServeConfig(), [0])
    assert (refused.value.status, refused.value.param) == (400, name)
    json.loads(refused.value.body)


@pytest.mark.parametrize("name", config.BOUNDS)
def test_an_engine_takes_its_bounds_and_nothing_beyond(name: str) -> None:
    """Whatever lies beyond is refused by name before torch is imported, and never reaches a machine type or a pool."""
    low, high = config.BOUNDS[name]
    more = {"max_batch": 1} if name == "max_batched_tokens" else {}
    for value in (low, high):
        assert getattr(EngineConfig(**{name: value}, **more), name) == value
    for value in (low - 1, high + 1, 2**63, 10**400, -(10**400), float(low), str(low), True, math.nan):
        with pytest.raises(ValueError, match=f"^{name} must be a whole number from {low} to {high}, not "):
            EngineConfig(**{name: value}, **more)
    if getattr(EngineConfig, name) is not None:
        with pytest.raises(ValueError, match=name):
            EngineConfig(**{name: None})
