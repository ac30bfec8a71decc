"""KV usage, and many requests in a small pool: on a small model, where numbers can be checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanobench.micro import kv_usage
from nanobench.micro.kv_usage import BLOCK, KVUsageReport, pool_for, run_in_pool, short_lengths
from nanoinfer.model.gpt2 import GPT2
from tests.conftest import SMALL

TOKEN = SMALL.kv_numbers * 4


def test_bytes_of_the_same_requests_stand_in_their_order(small_model: GPT2) -> None:
    dense, paged = (kv_usage._usage(small_model, engine, 4, 24) for engine in ("dense", "paged"))
    assert (dense.steps, dense.rows, dense.tokens) == (paged.steps, paged.rows, paged.tokens)
    assert dense.steps > 24  # eight requests over four rows
    for held in (dense, paged):
        assert held.tokens < held.owned <= held.promised <= held.allocated
        assert 0 < held.fragmentation < held.unused < 1
    assert dense.owned == dense.promised  # a row is a row
    assert dense.idle_reservation == 0 < paged.idle_reservation
    assert paged.fragmentation < dense.fragmentation  # ends of blocks against ends of rows
    assert paged.owned - paged.tokens < paged.rows * BLOCK * TOKEN  # less than a block a row


@pytest.mark.parametrize("share", [1.0, 2 / 3])
def test_a_pool_holds_fewer_dense_rows_and_a_smaller_one_makes_requests_wait(small_model: GPT2, share: float) -> None:
    lengths = short_lengths(12, 80)
    pool = int(pool_for(lengths, TOKEN) * share)
    dense, paged = run_in_pool(small_model, lengths, pool)
    assert dense.rows == pool // (max(lengths) * TOKEN) - 1 < paged.rows
    assert (paged.rows == len(lengths)) == (share == 1)
    for found in (dense, paged):
        assert found.allocated <= pool
        assert found.tokens_per_s == pytest.approx(sum(n // 2 for n in lengths) / found.seconds.median)


def test_the_command_writes_what_it_prints(
    tmp_path: Path, small_model: GPT2, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kv_usage, "load_model", lambda *a, **k: small_model)
    report = kv_usage.measure("cpu", tmp_path / "memory.json", None, None, 6)
    assert KVUsageReport.model_validate_json((tmp_path / "memory.json").read_bytes()) == report
    assert (report.model, report.dtype, report.token_bytes, report.short_requests) == ("small", "float32", TOKEN, 6)
    printed = [f"{part}: {each}" for part in ("held", "squeezed") for each in getattr(report, part)]
    assert capsys.readouterr().out.splitlines() == printed
    assert ", unused 0." in printed[0]
