"""Speculation, ranks and replicas: small runs, and what is worked out of times that are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanobench.cli import app
from nanobench.core.records import Spread
from nanobench.micro import replicas, speculation_texts
from nanobench.micro.queue_load import Load
from nanobench.micro.replicas import ReplicasReport
from nanobench.micro.speculation import Forced, SpeculationReport, share_of_same
from nanobench.systems.base import Limits
from nanoinfer import SamplingParams
from nanoinfer.model.gpt2 import GPT2


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


def test_numbers_that_are_worked_out() -> None:
    """Three tokens a step at 2.5 times the speed: a step takes 1.2 times as long."""
    plain, drafted = Spread.of([100.0, 90.0, 110.0]), Spread.of([250.0])
    case = Forced.model_construct(plain=plain, drafted=drafted, alpha=0.5, draft_tokens=3, tokens_a_step=3.0)
    assert (case.gain, case.step_cost, case.formula) == (2.5, pytest.approx(1.2), 1.875)
    assert share_of_same([(1, 2, 3), (4,)], [(1, 9, 3), (4,)]) == 0.75


def test_transformers_drafts_from_the_prompt(small_model: GPT2) -> None:
    pytest.importorskip("transformers")
    arm = speculation_texts._peer(small_model, Limits(96, 2), 3)
    prompts, params = [[5, 6, 7] * 6], [SamplingParams(temperature=0, max_tokens=30)]
    assert arm.plain(prompts, params).texts == arm.drafted(prompts, params).texts
    assert not arm.enters(0.8, 1)
    assert not arm.enters(0, 2)


@pytest.mark.long
def test_two_engines_beside_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "BURST", Load(prompt=(2, 5), new=(2, 4)))
    monkeypatch.setattr(replicas, "ROWS", 2)
    path = tmp_path / "deep" / "replicas.json"
    report = replicas.measure("cpu", path, "random:tiny", 2, [5, 7], 2)
    assert [(each.replicas, each.requests) for each in report.cases] == [(1, 5), (2, 5), (1, 7), (2, 7)]
    assert all(len(each.tokens_per_s.samples) == 2 for each in report.cases)
    assert ReplicasReport.load(path) == report
