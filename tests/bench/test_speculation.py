"""`bench speculation` and `bench ranks`: a small run of each, and what is worked out of times that are known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch.distributed as dist
from typer.testing import CliRunner

from nanobench.cli import app
from nanobench.core.records import Spread
from nanobench.micro.ranks import Ranked, RanksReport
from nanobench.micro.speculation import Forced, SpeculationReport
from tests.bench.samples import STAMP


def run(path: Path, *arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--model", "random:tiny", "--out", str(path)])
    assert done.exit_code == 0, done.output
    return done.output


def test_drafts_that_are_always_right_and_never(tmp_path: Path) -> None:
    """The coin decides, and tokens are those of plain decoding either way."""
    sizes = ("--rows", "2", "--drafts", "3", "--new-tokens", "13", "--repeats", "1")
    run(path := tmp_path / "drafts.json", "speculation", "--alpha", "0", "--alpha", "1", *sizes)
    never, always, *adaptive = SpeculationReport.load(path).cases
    assert (never.accepted_share, always.accepted_share) == (0, 1)
    assert never.tokens_a_step == 1
    assert always.tokens_a_step >= 3  # of twelve behind the prompt's own; the last step has room for fewer
    assert {case.same_share for case in (never, always, *adaptive)} == {1}
    assert [case.adaptive for case in adaptive] == [True, True]


def test_what_a_step_costs() -> None:
    """Three tokens a step at 2.5 times the speed: a step takes 1.2 times as long."""
    plain, drafted = Spread.of([100.0, 90.0, 110.0]), Spread.of([250.0])
    case = Forced(
        model="m", rows=1, alpha=0.5, draft_tokens=3, adaptive=False, plain=plain, drafted=drafted, accepted_share=0.4,
        tokens_a_step=3.0, same_share=1.0,
    )  # fmt: skip
    assert (case.gain, case.step_cost, case.formula) == (2.5, pytest.approx(1.2), 1.875)


def test_gain_of_ranks() -> None:
    def one(ranks: int, rows: int, rate: float) -> Ranked:
        return Ranked(model="m", ranks=ranks, rows=rows, tokens_per_s=Spread.of([rate]), step_s=Spread.of([1.0]))

    cases = (one(1, 1, 100.0), one(2, 1, 80.0), one(1, 64, 1000.0), one(2, 64, 1500.0))
    report = RanksReport(dtype="float32", prompt_tokens=1, new_tokens=2, cases=cases, **STAMP)
    assert (report.gain("m", 1), report.gain("m", 64)) == (0.8, 1.5)


@pytest.mark.skipif(os.name == "nt" or not dist.is_gloo_available(), reason="needs gloo and pipes")
def test_two_ranks_beside_one(tmp_path: Path) -> None:
    sizes = ("--rows", "1", "--prompt-tokens", "4", "--new-tokens", "4", "--repeats", "1")
    run(path := tmp_path / "ranks.json", "ranks", *sizes)
    report = RanksReport.load(path)
    assert [(case.ranks, case.rows) for case in report.cases] == [(1, 1), (2, 1)]
    assert [held.ranks for held in report.held] == [1, 2]
