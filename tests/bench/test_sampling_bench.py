"""The sampling benchmark: its variants as far as a CPU can run them, and its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from nanobench.__main__ import app
from nanobench.micro import sampling
from nanobench.micro.sampling import SamplingReport
from tests.conftest import SMALL

LOGITS = 3 * torch.randn(8, 500, generator=torch.Generator().manual_seed(0))


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
    monkeypatch.setitem(sampling.PRESETS, "gpt2", SMALL)
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
    rows = setting.rows(8, 5, torch.device("cpu"))
    expected = samplers.sampling.sample_filtered(LOGITS, rows)
    assert samplers.allowed(LOGITS, rows, expected)
    absent: dict[str, str] = {}
    made = samplers.sampling_variants(setting, LOGITS, rows, absent)
    assert list(made)[:2] == (["ours", "sort"] if setting.temperature else ["ours", "argmax"])
    if setting.top_k:
        assert torch.equal(samplers.topk(LOGITS, rows), expected)
        assert absent == {"flashinfer": "flashinfer is not installed: pip install 'nanoinfer[flashinfer]'"}
    if setting.temperature:
        monkeypatch.setattr(samplers, "rejection", lambda logits, rows: logits.argmin(-1))
        with pytest.raises(ValueError, match=f"rejection chose a token that {setting.name}"):
            samplers.sampling_variants(setting, LOGITS, rows, {})
