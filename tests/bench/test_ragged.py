"""`bench ragged`: its variants agree, and what it says of an engine is what the engine did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nanobench.micro import ragged
from nanobench.micro.ragged import RaggedReport
from nanoinfer.kernels import ragged_attention_torch
from nanoinfer.model.gpt2 import GPT2

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


def test_the_command_measures_every_engine_with_and_without_chunks(
    tmp_path: Path, small_model: GPT2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ragged, "load_model", lambda *a, **k: small_model)
    for name, value in {"SHORT": 3, "LONG": 70, "ARRIVING": 60, "ROWS": 4, "RUNNING": 5}.items():
        monkeypatch.setattr(ragged, name, value)
    report = ragged.measure("cpu", tmp_path / "ragged.json", None)
    assert RaggedReport.load(tmp_path / "ragged.json") == report
    found = [(each.engine, each.prefill_chunk, len(each.pause_s.samples)) for each in report.engines]
    assert found == [("dense", None, 3), ("dense", 64, 3), ("paged", None, 3), ("paged", 64, 3)]
