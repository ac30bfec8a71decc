"""The sampling benchmark: its variants as far as a CPU can run them, and its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from nanobench.__main__ import app
from nanobench.core.records import Spread
from nanobench.micro import sampling
from nanobench.micro.sampling import SamplingReport

LOGITS = 3 * torch.randn(40, 2000, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def samplers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The variants, with PyTorch's sampler in place of kernels, and no peer installed."""
    made = pytest.importorskip("nanobench.micro.sampling_variants", reason="there are no wheels of Triton here")
    monkeypatch.setattr(made, "find_spec", lambda name: None)
    for module, name in ((made.sampling_kernels, "sample"), (made, "rejection")):
        monkeypatch.setattr(module, name, made.sampling.sample_filtered)
    return made


@pytest.mark.usefixtures("samplers")
def test_a_cpu_has_what_the_engine_does_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "CALLS", 2)
    monkeypatch.setattr(sampling, "REPEATS", 2)
    done = CliRunner().invoke(app, ["sampling", "--device", "cpu", "--out", str(tmp_path / "s.json")])
    assert done.exit_code == 0, done.output
    found = {(time.batch, time.setting, time.arm) for time in SamplingReport.load(tmp_path / "s.json").times}
    both = {(name, arm) for name in ("top-k 50, top-p 0.95", "top-p 0.95") for arm in ("ours", "sort")}
    assert found == {(batch, *each) for batch in (1, 8) for each in both | {("greedy", "ours"), ("no filter", "ours")}}


@pytest.mark.parametrize("name", ["BOTH", "TOP_P", "GREEDY"])
def test_variants_follow_the_rule_and_a_wrong_one_is_not_timed(
    samplers: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = getattr(samplers, name)
    rows = setting.rows(40, 5, torch.device("cpu"))
    expected = samplers.sampling.sample_filtered(LOGITS, rows)
    assert samplers.allowed(LOGITS, rows, expected)
    made, absent = samplers.sampling_variants(setting, LOGITS, rows)
    assert list(made)[:2] == (["ours", "sort"] if setting.temperature else ["ours", "argmax"])
    if setting.top_k:
        assert torch.equal(samplers.topk(LOGITS, rows), expected)
        assert absent == {"flashinfer": "flashinfer is not installed: pip install 'nanoinfer[flashinfer]'"}
    if setting.temperature:
        monkeypatch.setattr(samplers, "rejection", lambda logits, rows: logits.argmin(-1))
        with pytest.raises(ValueError, match=f"rejection chose a token that {setting.name}"):
            samplers.sampling_variants(setting, LOGITS, rows)


def test_every_variant_of_a_setting_is_timed(samplers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With calls in place of graphs."""
    seen: dict[str, list[list[int]]] = {}

    def call_seconds(calls: Any, count: int, repeats: int, on_gpu: bool) -> dict[str, Spread]:
        for name, call in calls.items():
            seen[name] = [call(i).tolist() for i in range(count)]
        return {name: Spread.of([1e-5] * repeats) for name in calls}

    monkeypatch.setattr(sampling, "call_seconds", call_seconds)
    logits: Tensor = LOGITS[:3, :300]
    found, _ = sampling._case(samplers.BOTH, logits, True)
    assert [record.arm for record in found] == list(seen) == ["ours", "sort", "topk", "rejection"]
    assert all(tokens == seen["sort"] for tokens in seen.values())
    assert seen["sort"][0] != seen["sort"][1]  # each call of the graph is another step
