"""The burst over several engines: a small run on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

from nanobench.micro.ranks_replicas import Replicated, measure_replicas


def test_two_engines_beside_one(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "replicas.json"
    found = measure_replicas("random:tiny", "cpu", 2, [5, 7], path, rows=2, prompt=(2, 5), new=(2, 4), repeats=2)
    assert [(each.replicas, each.requests) for each in found] == [(1, 5), (2, 5), (1, 7), (2, 7)]
    assert all(len(each.tokens_per_s.samples) == 2 for each in found)
    assert [Replicated(**each) for each in json.loads(path.read_text())] == found
