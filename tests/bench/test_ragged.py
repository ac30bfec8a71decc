"""`bench ragged`: its variants agree, and what it says of an engine is what the engine did."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanobench.micro import ragged, ragged_variants
from nanobench.micro.ragged import RaggedReport, first_tokens, gaps
from nanobench.micro.ragged_variants import CASES
from nanoinfer import LLM
from nanoinfer.engine import engine as engines
from nanoinfer.engine.eager import EagerRunner
from nanoinfer.kernels import paged_attention_torch
from nanoinfer.model.gpt2 import GPT2

CPU = torch.device("cpu")
ROWS = [(0, 5), (20, 1), (16, 7)]


@pytest.mark.parametrize("rows", [ROWS, [(0, 9), (0, 3)], [(20, 1), (3, 1), (16, 7)]])
def test_every_variant_attends_to_the_same(rows: list[tuple[int, int]]) -> None:
    """The function that makes them compares them; here by the kernel's reference."""
    made = ragged_variants.ragged_variants(rows, CPU, torch.float32)
    assert list(made) == ["sdpa, padded", "sdpa, pages gathered", "ragged kernel"]
    tokens, columns = sum(new for _, new in rows), max(new for _, new in rows)
    shapes = [tuple(call().shape) for call in made.values()]
    assert shapes == [(len(rows), 12, columns, 64)] * 2 + [(tokens, 12, 64)]


@pytest.mark.parametrize("wrong", ["gather_pages", "attend_ragged"])
def test_a_wrong_variant_is_not_timed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner: Any = ragged_variants if wrong == "gather_pages" else paged_attention_torch
    right = getattr(owner, wrong)
    monkeypatch.setattr(owner, wrong, lambda *arguments: right(*arguments) + 1)
    with pytest.raises(AssertionError, match="sdpa, pages gathered" if wrong == "gather_pages" else "ragged kernel"):
        ragged_variants.ragged_variants(ROWS, CPU, torch.float32)


def test_the_cases_are_those_that_are_named() -> None:
    sizes = {
        case: (len(rows), sum(new for _, new in rows), max(new for _, new in rows)) for case, rows in CASES.items()
    }
    assert sizes["one prompt of 1024"] == (1, 1024, 1024)
    assert sizes["31 prompts of 10 and one of 900"] == (32, 1210, 900)
    assert sizes["64 rows that go on at 512, a piece of 256"] == (65, 320, 256)
    contexts = {start + new for start, new in CASES["64 rows that go on at 512, a piece of 256"]}
    assert contexts == {512}
    assert sizes["256 rows that go on at 400, prompts of 700"] == (259, 956, 300)


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


@pytest.mark.parametrize("engine", ["dense", "paged"])
@pytest.mark.parametrize("chunk, longest", [(None, 61.0), (16, 17.0)])
def test_a_pause_is_the_piece_that_the_row_waits_for(
    small_model: GPT2, clock: SimpleNamespace, engine: str, chunk: int | None, longest: float
) -> None:
    with LLM(small_model, engine=engine, max_batch=4, prefill_chunk=chunk) as llm:
        assert gaps(llm, [1, 2, 3], [4] * 60) == (1.0, longest)
        assert gaps(llm, [1, 2, 3], [4] * 60) == (1.0, longest)  # nothing is left of the first time
        assert not llm.core.busy


def test_first_tokens_are_counted_from_the_call(small_model: GPT2, clock: SimpleNamespace) -> None:
    """Steps of at most 16 tokens: three prompts of 5 and a token of the fourth, the rest of it, and so on."""
    with LLM(small_model, engine="paged", max_batch=5, max_batched_tokens=16) as llm:
        assert first_tokens(llm, [[1] * 5] * 4 + [[2] * 30]) == [16.0, 16.0, 16.0, 32.0, 50.0]


def test_the_command_writes_what_it_prints(
    tmp_path: Path, small_model: GPT2, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ragged, "load_model", lambda *a, **k: small_model)
    for name, value in {"SHORT": 3, "LONG": 70, "ARRIVING": 60, "ROWS": 4, "RUNNING": 5}.items():
        monkeypatch.setattr(ragged, name, value)
    report = ragged.measure("cpu", tmp_path / "ragged.json", None)
    assert RaggedReport.load(tmp_path / "ragged.json") == report
    assert [(e.engine, e.prefill_chunk) for e in report.engines] == [
        (engine, chunk) for engine in ("dense", "paged") for chunk in (None, 64)
    ]  # fmt: skip
    assert (report.model, report.dtype, report.attention) == ("small", "float32", ())
    for found in report.engines:
        assert len(found.short_s.samples) == len(found.pause_s.samples) == 3
        assert found.pause_s.median >= found.step_s.median > 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("no GPU: attention alone is left out")
    assert len(lines) == 1 + len(report.engines)
