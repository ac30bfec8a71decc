"""`bench ragged`: its variants agree, and what it says of an engine is what the engine did."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanobench.micro import ragged, ragged_variants
from nanobench.micro.ragged import RaggedReport, gaps
from nanoinfer import LLM
from nanoinfer.engine import engine as engines
from nanoinfer.engine.eager import EagerRunner
from nanoinfer.kernels import paged_attention_torch
from nanoinfer.model.gpt2 import GPT2

CPU = torch.device("cpu")
ROWS = [(0, 5), (20, 1), (16, 7)]


@pytest.mark.parametrize(
    "owner, function, variant",
    [
        (ragged_variants, "gather_pages", "sdpa, pages gathered"),
        (paged_attention_torch, "attend_ragged", "ragged kernel"),
    ],
)
def test_variants_agree_and_a_wrong_one_is_not_timed(
    owner: Any, function: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function that makes them compares them; here by the kernel's reference."""
    made = ragged_variants.ragged_variants(ROWS, CPU, torch.float32)
    shapes = {name: tuple(call().shape) for name, call in made.items()}
    assert shapes == {
        "sdpa, padded": (3, 12, 7, 64), "sdpa, pages gathered": (3, 12, 7, 64), "ragged kernel": (13, 12, 64),
    }  # fmt: skip
    right = getattr(owner, function)
    monkeypatch.setattr(owner, function, lambda *arguments: right(*arguments) + 1)
    with pytest.raises(AssertionError, match=variant):
        ragged_variants.ragged_variants(ROWS, CPU, torch.float32)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock for the engine that a step moves on by as many seconds as it runs tokens."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    prefill, decode = EagerRunner.prefill, EagerRunner.decode

    def slow_prefill(self: EagerRunner, going: Any, chunks: Any, sampler: Any) -> Any:
        clock.now += len(going) + sum(len(chunk.token_ids) for chunk in chunks)
        return prefill(self, going, chunks, sampler)

    def slow_decode(self: EagerRunner, batch: int, longest: int, sampler: Any) -> Any:
        clock.now += batch
        return decode(self, batch, longest, sampler)

    monkeypatch.setattr(EagerRunner, "prefill", slow_prefill)
    monkeypatch.setattr(EagerRunner, "decode", slow_decode)
    monkeypatch.setattr(engines, "time", clock)
    monkeypatch.setattr(ragged, "time", clock)
    return clock


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("engine", ["dense", "paged"])
@pytest.mark.parametrize("chunk, longest", [(None, 61.0), (16, 17.0)])
def test_a_pause_is_the_piece_that_the_row_waits_for(
    small_model: GPT2, engine: str, chunk: int | None, longest: float
) -> None:
    with LLM(small_model, engine=engine, max_batch=4, prefill_chunk=chunk) as llm:
        for _ in range(2):  # nothing is left of the first time
            assert gaps(llm, [1, 2, 3], [4] * 60) == (1.0, longest)
        assert not llm.core.busy


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
