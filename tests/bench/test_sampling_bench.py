"""The sampling benchmark: its file, its refusal, and its variants as far as a CPU can run them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from typer.testing import CliRunner

from nanobench.__main__ import app
from nanobench.core.records import Spread
from nanobench.micro import sampling
from nanobench.micro.sampling import SamplerTime, SamplingReport
from tests.bench.samples import STAMP


def test_a_cpu_has_what_the_engine_does_there(samplers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "CALLS", 2)
    monkeypatch.setattr(sampling, "REPEATS", 2)
    arguments = ["sampling", "--device", "cpu", "--out", str(tmp_path / "s.json")]
    done = CliRunner().invoke(app, arguments, prog_name="bench")
    assert done.exit_code == 0, done.output
    found = {(time.batch, time.setting, time.arm) for time in SamplingReport.load(tmp_path / "s.json").times}
    both = {(name, arm) for name in ("top-k 50, top-p 0.95", "top-p 0.95") for arm in ("ours", "sort")}
    assert found == {(batch, *each) for batch in (1, 8) for each in both | {("greedy", "ours"), ("no filter", "ours")}}


def test_a_report_can_be_read_again() -> None:
    times = tuple(
        SamplerTime(batch=batch, setting="top-p 0.95", arm=arm, seconds=Spread.of([1e-5, 2e-5, 3e-5]))
        for batch in (1, 64)
        for arm in ("ours", "sort")
    )
    report = SamplingReport(**STAMP, vocab_size=50257, std=3.0, times=times, left_out={"flashinfer": "not installed"})
    text = report.model_dump_json(indent=1)
    assert SamplingReport.model_validate_json(text) == report
    jsonschema.validate(json.loads(text), SamplingReport.model_json_schema())
    with pytest.raises(ValueError, match="speed"):
        SamplingReport.model_validate_json(text.replace('"std"', '"speed"'))


@pytest.fixture
def samplers() -> Any:
    return pytest.importorskip("nanobench.micro.sampling_variants", reason="there are no wheels of Triton here")


@pytest.mark.parametrize("name", ["BOTH", "TOP_P", "GREEDY"])
def test_variants_without_a_kernel(samplers: Any, name: str) -> None:
    """What PyTorch alone computes follows the rule, and the check refuses what the filters drop."""
    from nanoinfer.engine.sampling import sample_filtered

    setting = getattr(samplers, name)
    logits = torch.randn(40, 2000, generator=torch.Generator().manual_seed(0)) * 3
    rows = setting.rows(40, 5, torch.device("cpu"))
    expected = sample_filtered(logits, rows)
    assert samplers.allowed(logits, rows, expected)
    assert not samplers.allowed(logits, rows, logits.argmin(-1))
    if setting.top_k:
        assert torch.equal(samplers.topk(logits, rows), expected)


def test_a_peer_that_is_not_installed_is_left_out(samplers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "find_spec", lambda name: None)
    monkeypatch.setattr(samplers.sampling_kernels, "sample", samplers.sampling.sample_filtered)
    monkeypatch.setattr(samplers, "rejection", samplers.sampling.sample_filtered)
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(0))
    settings = {setting.name: setting for setting in samplers.SETTINGS}
    found = {
        name: samplers.sampling_variants(setting, logits, setting.rows(3, 0, logits.device))
        for name, setting in settings.items()
    }
    made, absent = found["top-k 50, top-p 0.95"]
    assert list(made) == ["ours", "sort", "topk", "rejection"]
    assert absent == {"flashinfer": "flashinfer is not installed: pip install 'nanoinfer[flashinfer]'"}
    assert list(found["greedy"][0]) == ["ours", "argmax"]
    monkeypatch.setattr(samplers, "rejection", lambda logits, rows: logits.argmin(-1))
    with pytest.raises(ValueError, match="rejection chose a token that top-k 50"):
        samplers.sampling_variants(samplers.BOTH, logits, samplers.BOTH.rows(3, 0, logits.device))


def test_every_variant_of_a_setting_is_timed(samplers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With calls in place of graphs, and PyTorch's samplers in place of kernels."""
    monkeypatch.setattr(samplers, "find_spec", lambda name: None)
    for module, name in ((samplers.sampling_kernels, "sample"), (samplers, "rejection")):
        monkeypatch.setattr(module, name, samplers.sampling.sample_filtered)
    seen: dict[str, list[int]] = {}

    def call_seconds(calls: Any, count: int, repeats: int, on_gpu: bool) -> dict[str, Spread]:
        for name, call in calls.items():
            seen[name] = [int(call(i)[0]) for i in range(count)]
        return {name: Spread.of([1e-5] * repeats) for name in calls}

    monkeypatch.setattr(sampling, "call_seconds", call_seconds)
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(0))
    found, absent = sampling._case(samplers.BOTH, logits, True)
    assert [record.arm for record in found] == list(seen) == ["ours", "sort", "topk", "rejection"]
    assert absent.keys() == {"flashinfer"}
    assert all(tokens == seen["sort"] for tokens in seen.values())
    assert len(set(seen["sort"])) > 1  # each call of the graph is another step
