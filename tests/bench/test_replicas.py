"""The burst over several engines: a small run on a CPU."""

from __future__ import annotations

from pathlib import Path

from nanobench.micro.replicas import ReplicasReport, measure


def test_two_engines_beside_one(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "replicas.json"
    report = measure("cpu", path, "random:tiny", 2, [5, 7], 2, rows=2, prompt=(2, 5), new=(2, 4))
    assert [(each.replicas, each.requests) for each in report.cases] == [(1, 5), (2, 5), (1, 7), (2, 7)]
    assert all(len(each.tokens_per_s.samples) == 2 for each in report.cases)
    assert ReplicasReport.load(path) == report
