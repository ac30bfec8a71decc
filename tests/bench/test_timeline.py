"""`bench timeline`: a step is cut out of the profiler's events, and drawn."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.autograd import DeviceType

from nanobench.micro import timeline
from nanobench.micro.timeline import MARK, measure, pick
from nanobench.report.plot import drawings, load
from nanoinfer.model.gpt2 import GPT2

GPU = DeviceType.CUDA


def event(name: str, start: float, end: float, device: Any = DeviceType.CPU, parent: Any = None) -> Any:
    return SimpleNamespace(
        name=name, time_range=SimpleNamespace(start=start, end=end), device_type=device, cpu_parent=parent
    )


def test_a_step_is_cut_out_of_the_profile() -> None:
    """Three marked steps: the one of median length is taken, with the outermost operators and with its kernels."""
    mark = event(MARK, 100, 200)
    outer = event("aten::linear", 110, 150, parent=mark)
    events = [
        event(MARK, 0, 90), mark, event(MARK, 300, 900), event(MARK, 115, 190, GPU),
        outer, event("aten::addmm", 112, 149, parent=outer), event("cudaLaunchKernel", 120, 125, parent=outer),
        event("cudaEventSynchronize", 160, 190, parent=mark), event("cudaGetDevice", 155, 156, parent=mark),
        event("gemm", 130, 150, GPU), event("late", 350, 360, GPU),
    ]  # fmt: skip
    step = pick("dense", events, 50.0)
    assert step.duration_us == 100
    assert [(e.name, e.kind, e.start_us) for e in step.host] == [
        ("aten::linear", "operator", 10), ("cudaLaunchKernel", "launch", 20), ("cudaEventSynchronize", "wait", 60),
    ]  # fmt: skip
    assert [(k.name, k.start_us, k.duration_us) for k in step.kernels] == [("gemm", 30, 20)]
    assert step.busy == 0.2


def test_a_step_begins_where_the_last_ones_tokens_have_been_copied() -> None:
    """The host is ahead: what it marks as one step is on the GPU the end of one and the beginning of another."""
    copies = [event("Memcpy DtoH (Device -> Pinned)", end - 2, end, GPU) for end in (122, 145, 190)]
    starts = (105, 110, 115, 125, 131, 140, 150, 160)
    kernels = [event(name, start, start + 5, GPU) for name, start in zip("abcdefgh", starts, strict=True)]
    events = [event(MARK, 100, 118), event(MARK, 118, 195), *copies, *kernels]
    step = pick("paged-graph", events, 50.0)
    assert step.duration_us == 45
    assert [k.name for k in step.kernels] == ["g", "h", copies[2].name]
    events.append(event(copies[0].name, 218, 220, GPU))  # after the last mark: what the host had launched before
    assert pick("paged-graph", events, 50.0) == step


def test_a_step_of_a_model_is_profiled(tmp_path: Path, small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "load_model", lambda *a, **k: small_model)
    monkeypatch.setattr(timeline, "STEPS", 3)
    made = measure(tmp_path / "steps.json", "cpu", "small", 2, 4, "dense")
    (step,) = made.steps
    assert len(step.host) > 50
    assert not step.kernels
    assert all(0 <= e.start_us < step.duration_us for e in step.host)
    assert load(tmp_path / "steps.json") == made
    (drawing,) = drawings(tmp_path / "steps.json")
    assert drawing.draw().axes
    with pytest.raises(ValueError, match="engine must be one of naive, dense"):
        measure(engines="dense,fast")
