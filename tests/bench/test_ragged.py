"""`bench ragged`: its variants agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanobench.micro import ragged
from nanoinfer.kernels import ragged_attention_torch

CPU = torch.device("cpu")
ROWS = [(0, 5), (20, 1), (16, 7)]


@pytest.mark.parametrize(
    "owner, function, variant",
    [
        (ragged, "gather_pages", "sdpa, pages gathered"),
        (ragged_attention_torch, "attend_ragged", "ragged kernel"),
    ],
)
def test_variants_agree_and_a_wrong_one_is_not_timed(
    owner: Any, function: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function that makes them compares them; here by the kernel's reference."""
    made = ragged.ragged_variants(ROWS, CPU, torch.float32)
    shapes = {name: tuple(call().shape) for name, call in made.items()}
    assert shapes == {
        "sdpa, padded": (3, 12, 7, 64), "sdpa, pages gathered": (3, 12, 7, 64), "ragged kernel": (13, 12, 64),
    }  # fmt: skip
    right = getattr(owner, function)
    monkeypatch.setattr(owner, function, lambda *arguments: right(*arguments) + 1)
    with pytest.raises(AssertionError, match=variant):
        ragged.ragged_variants(ROWS, CPU, torch.float32)
