"""KV usage, and many requests in a small pool: on a small model, where numbers can be checked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nanobench.micro import fixed_pool, kv_usage
from nanobench.micro.fixed_pool import BLOCK, pool_for, run_in_pool, short_lengths
from nanobench.micro.kv_usage import CacheUsage, KVUsageReport, lines
from nanoinfer.model.gpt2 import GPT2
from tests.conftest import SMALL

TOKEN = SMALL.kv_numbers * 4


@pytest.fixture(scope="module")
def held(small_model: GPT2) -> dict[str, CacheUsage]:
    return {engine: kv_usage._usage(small_model, engine, 4, 24) for engine in ("dense", "paged")}


def test_both_engines_run_the_same_requests(held: dict[str, CacheUsage]) -> None:
    dense, paged = held["dense"], held["paged"]
    assert (dense.steps, dense.rows, dense.tokens) == (paged.steps, paged.rows, paged.tokens)
    assert dense.steps > 24  # eight requests over four rows
    assert 1 < dense.rows < 4


def test_bytes_stand_in_their_order(held: dict[str, CacheUsage]) -> None:
    for h in held.values():
        assert h.tokens < h.owned <= h.promised <= h.allocated
        assert 0 < h.fragmentation < h.unused < 1
    dense, paged = held["dense"], held["paged"]
    assert dense.owned == dense.promised  # a row is a row
    assert dense.idle_reservation == 0 < paged.idle_reservation
    assert paged.fragmentation < dense.fragmentation  # ends of blocks against ends of rows
    assert paged.owned - paged.tokens < paged.rows * BLOCK * TOKEN  # less than a block a row


def test_a_text_that_ends_by_itself_leaves_its_reservation_unused(
    small_model: GPT2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no text ends early, only the blocks that rows have not come to yet are idle."""
    monkeypatch.setattr(kv_usage, "STOP_SHARE", 0.0)
    late = kv_usage._usage(small_model, "paged", 4, 60)
    monkeypatch.setattr(kv_usage, "STOP_SHARE", 0.25)
    early = kv_usage._usage(small_model, "paged", 4, 60)
    assert early.steps < late.steps
    assert early.idle_reservation > late.idle_reservation + 0.1


def test_tokens_are_those_that_were_fed(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row at a time: a prompt, then the same and one token more, and so on; the newest token is never fed."""
    monkeypatch.setattr(kv_usage, "STOP_SHARE", 0.0)
    prompts: list[int] = []
    requests = kv_usage.LLM.requests

    def watched(llm: kv_usage.LLM, asked: list[list[int]], params: object) -> object:
        prompts.extend(map(len, asked))
        return requests(llm, asked, params)

    monkeypatch.setattr(kv_usage.LLM, "requests", watched)
    held = kv_usage._usage(small_model, "paged", 1, 12)
    steps = [length + fed for length in prompts for fed in range(11)]  # with the last step the row is gone
    assert (held.steps, held.rows) == (len(steps), 1.0)
    assert held.tokens == pytest.approx(TOKEN * sum(steps) / len(steps))
    assert held.owned == pytest.approx(TOKEN * BLOCK * sum(-(-n // BLOCK) for n in steps) / len(steps))


def test_lengths_are_mostly_short() -> None:
    lengths = short_lengths(500, 1024)
    assert min(lengths) >= 16
    assert max(lengths) <= 1024
    assert sorted(lengths)[250] < 160
    assert max(lengths) > 512
    assert short_lengths(500, 1024) == lengths


def test_a_pool_holds_fewer_dense_rows(small_model: GPT2) -> None:
    lengths = short_lengths(12, 80)
    pool = pool_for(lengths, TOKEN)
    dense, paged = run_in_pool(small_model, lengths, pool)
    assert (dense.engine, paged.engine) == ("dense", "paged")
    assert dense.rows == pool // (max(lengths) * TOKEN) - 1 < paged.rows == len(lengths)
    assert dense.allocated <= pool
    assert paged.allocated == pool
    for s in (dense, paged):
        assert len(s.seconds.samples) == fixed_pool.REPEATS
        assert s.tokens_per_s == pytest.approx(sum(n // 2 for n in lengths) / s.seconds.median)


def test_a_smaller_pool_makes_requests_wait(small_model: GPT2) -> None:
    lengths = short_lengths(12, 80)
    pool = pool_for(lengths, TOKEN) * 2 // 3
    dense, paged = run_in_pool(small_model, lengths, pool)
    assert dense.rows < paged.rows < len(lengths)
    assert paged.allocated <= pool


def test_a_pool_too_small_for_a_row_is_refused(small_model: GPT2) -> None:
    with pytest.raises(ValueError, match=r"pool must hold a row of 64 tokens and a spare one, not 0.064 MB"):
        list(run_in_pool(small_model, [16, 64], 64_000))


def test_the_command_writes_what_it_prints(
    tmp_path: Path, small_model: GPT2, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kv_usage, "load_model", lambda *a, **k: small_model)
    path = tmp_path / "memory.json"
    report = kv_usage.measure("cpu", path, None, None, 6)
    assert KVUsageReport.model_validate_json(path.read_bytes()) == report
    assert (report.model, report.token_bytes, report.short_requests) == ("small", TOKEN, 6)
    out = capsys.readouterr().out
    assert out == "\n".join(lines(report)) + "\n"
    assert "6 short requests in" in out
    assert str(torch.float32) == f"torch.{report.dtype}"
