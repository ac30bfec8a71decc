"""The sampling benchmark: its variants as far as a CPU can run them, and its file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from nanobench.__main__ import app
from nanobench.micro import sampling
from nanobench.micro.sampling import SamplingReport
from tests.conftest import SMALL

LOGITS = 3 * torch.randn(8, 500, generator=torch.Generator().manual_seed(0))


def test_a_cpu_has_what_the_engine_does_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sampling.PRESETS, "gpt2", SMALL)
    monkeypatch.setattr(sampling, "CALLS", 2)
    monkeypatch.setattr(sampling, "REPEATS", 2)
    done = CliRunner().invoke(app, ["sampling", "--device", "cpu", "--out", str(tmp_path / "s.json")])
    assert done.exit_code == 0, done.output
    found = {(time.batch, time.setting, time.arm) for time in SamplingReport.load(tmp_path / "s.json").times}
    both = {(name, arm) for name in ("top-k 50, top-p 0.95", "top-p 0.95") for arm in ("ours", "sort")}
    assert found == {(batch, *each) for batch in (1, 8) for each in both | {("greedy", "ours"), ("no filter", "ours")}}


@pytest.mark.parametrize("setting", sampling.SETTINGS, ids=lambda setting: setting.name)
def test_variants_follow_the_rule_and_a_wrong_one_is_not_timed(
    setting: sampling.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = setting.rows(8, 5, torch.device("cpu"))
    expected = sampling.sampling.sample_filtered(LOGITS, rows)
    for sampler in sampling.variants(setting, on_gpu=False).values():
        assert torch.equal(sampler(LOGITS, rows), expected)
    monkeypatch.setattr(sampling, "variants", lambda setting, on_gpu: {"worst": lambda logits, rows: logits.argmin(-1)})
    if setting.name != "no filter":
        with pytest.raises(ValueError, match=f"worst chose a token that {setting.name} drops"):
            list(sampling._case(setting, LOGITS))
