"""`nanoinfer doctor`: what it says on machines that have less, or more, than this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nanoinfer.cli import doctor, machine
from nanoinfer.config import ENGINES
from nanoinfer.model.config import PRESETS
from tests.cli.test_main import ENVIRONMENT, invoke

GPU = {"name": "GPU [bold]", "capability": "9.0", "free_bytes": 100 << 30, "total_bytes": 140 << 30}
NO_TORCH = {"version": None, "cuda_build": None, "problem": "torch is gone: install it", "gpus": []}
CPU_TORCH = {"version": "2.13", "cuda_build": None, "problem": None, "gpus": []}
GPU_TORCH = {"version": "2.13", "cuda_build": "13.0", "problem": None, "gpus": [GPU]}
ALL_ENGINES = ("naive", "dense", "paged", "dense-graph", "paged-graph", "fused")


def validate(report: dict[str, Any]) -> None:
    schema = json.loads(files("nanoinfer").joinpath("data/doctor.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(report, schema, cls=jsonschema.Draft202012Validator)


def examine(monkeypatch: pytest.MonkeyPatch, torch: dict[str, Any], driver: str | None = None, **more: Any) -> Any:
    """The report of a machine that has this torch and driver; `triton` and `problem` besides."""
    triton = {"version": more.get("triton"), "interpret": False, "remedy": None if more.get("triton") else "get it"}
    monkeypatch.setattr(machine, "probe_torch", lambda: torch)
    monkeypatch.setattr(machine, "probe_driver", lambda: driver)
    monkeypatch.setattr(machine, "probe_triton", lambda: triton)
    monkeypatch.setattr(machine, "probe_run", lambda: more.get("problem"))
    monkeypatch.setattr(doctor, "ENGINES", ALL_ENGINES)
    report = doctor.examine()
    validate(report)
    return report


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    result = invoke(capsys, "doctor", "--json")
    assert (result.code, result.err) == (0, "")
    report = json.loads(result.out)
    validate(report)
    assert report["runs"]
    assert [engine["name"] for engine in report["engines"]] == list(ENGINES)
    result = invoke(capsys, "doctor")
    assert (result.code, result.err) == (0, "")
    for part in ("Python", "torch", "Triton", "TRITON_INTERPRET", "hub cache", "HF_HUB_OFFLINE", *PRESETS, *ENGINES):
        assert part in result.out
    assert "full context" in result.out
    assert result.out.endswith("nanoinfer runs here.\n")


@pytest.mark.parametrize("content", ["raise OSError('libtorch.so is gone')", "raise ImportError('no such symbol')", ""])
def test_a_missing_or_broken_torch_is_told(content: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(content)  # the last one is a torch that has nothing in it
    path = f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    command = [sys.executable, "-m", "nanoinfer", "doctor"]
    for more in ([], ["--json"]):
        environment = ENVIRONMENT | {"PYTHONPATH": path}
        done = subprocess.run([*command, *more], check=False, capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stderr) == (1, "")
        assert "install it again" in done.stdout
    validate(json.loads(done.stdout))


def test_a_gpu_with_triton_runs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examine(monkeypatch, GPU_TORCH, driver="580.1", triton="3.7")
    assert all(engine["runs"] and not engine["remedy"] and not engine["note"] for engine in report["engines"])
    assert report["cuda_remedy"] is None
    shown = doctor.show(report)
    for part in ("GPU [bold]", "9.0", "580.1", "CUDA 13.0", "cuda:0 bfloat16", "100.0 GiB"):
        assert part in shown


def test_a_gpu_without_triton_lacks_the_paged_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examine(monkeypatch, GPU_TORCH, driver="580.1")
    lacking = {engine["name"]: engine["remedy"] for engine in report["engines"] if not engine["runs"]}
    assert lacking.keys() == {"paged", "paged-graph", "fused"}
    assert all("get it" in remedy for remedy in lacking.values())


def test_on_a_cpu_every_engine_runs_without_kernels_and_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examine(monkeypatch, CPU_TORCH)
    notes = {engine["name"]: engine["note"] for engine in report["engines"] if engine["runs"]}
    assert notes == {
        "naive": None,
        "dense": None,
        "paged": "on a CPU the kernels' PyTorch reference runs",
        "dense-graph": "on a CPU no step is captured",
        "paged-graph": "on a CPU the kernels' PyTorch reference runs and no step is captured",
        "fused": "on a CPU the kernels' PyTorch reference runs and no step is captured",
    }
    assert report["runs"]


def test_what_goes_wrong_keeps_every_engine_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examine(monkeypatch, NO_TORCH)
    assert not report["runs"]
    assert {engine["remedy"] for engine in report["engines"]} == {"torch is gone: install it"}
    assert doctor.show(report).endswith("does not run here: torch is gone: install it.\n")
    assert examine(monkeypatch, CPU_TORCH, problem="it fell over")["problem"] == "it fell over"
    monkeypatch.setattr(machine, "installed", lambda name: None)
    assert examine(monkeypatch, CPU_TORCH)["problem"] == "pip install tiktoken safetensors huggingface_hub"


@pytest.mark.parametrize(
    ("torch", "driver", "part"),
    [
        (CPU_TORCH, None, "no NVIDIA driver"),
        (CPU_TORCH, "580.1", "built without CUDA"),
        (CPU_TORCH | {"cuda_build": "13.0"}, "470.1", "too old"),
        (NO_TORCH, "580.1", "torch finds no GPU"),
    ],
)
def test_why_there_is_no_gpu(
    torch: dict[str, Any], driver: str | None, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert part in examine(monkeypatch, torch, driver=driver)["cuda_remedy"]


def test_a_hidden_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    report = examine(monkeypatch, CPU_TORCH | {"cuda_build": "13.0"}, driver="580.1")
    assert "CUDA_VISIBLE_DEVICES" in report["cuda_remedy"]


@pytest.mark.parametrize(("system", "part"), [("Darwin", "no wheels for Darwin"), ("Linux", "pip install triton")])
def test_triton_by_platform(system: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed", lambda name: None)
    monkeypatch.setattr(machine.platform, "system", lambda: system)
    monkeypatch.setattr(machine.sys, "platform", system.lower())
    assert part in machine.probe_triton()["remedy"]


def test_triton_interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert machine.probe_triton()["interpret"]
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert not machine.probe_triton()["interpret"]


def test_bytes_by_hand() -> None:
    gpt2 = PRESETS["gpt2"]
    assert doctor.cache_bytes_per_row(gpt2, 2) == 2 * 12 * 768 * 1024 * 2 == 37_748_736
    assert doctor.weight_bytes(gpt2, 4) == 4 * (124_439_808 + 47 * 768)  # 47 rows make the head a multiple of 64


def test_a_batch_is_what_fits_beside_the_weights() -> None:
    gpt2 = PRESETS["gpt2"]
    weights, row = doctor.weight_bytes(gpt2, 4), doctor.cache_bytes_per_row(gpt2, 4)
    assert doctor.batches(weights + 3 * row, 4)["gpt2"] == 3
    assert doctor.batches(weights + 3 * row - 1, 4)["gpt2"] == 2
    assert doctor.batches(weights - 1, 4)["gpt2"] == 0
    place = {"device": "cpu", "dtype": "float32", "free_bytes": 1, "batch": doctor.batches(1, 4)}
    assert "none fits" in doctor.batch_table([place])[-1]


def test_unknown_memory_is_called_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoinfer.cli.doctor.free_host_memory", lambda: None)
    report = examine(monkeypatch, CPU_TORCH)
    assert report["memory"][0]["batch"] is None
    assert "unknown" in doctor.show(report)


def test_old_gpus_count_in_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    old = GPU_TORCH | {"gpus": [GPU | {"capability": "7.5"}]}
    assert examine(monkeypatch, old)["memory"][1]["dtype"] == "float16"


def test_gpt2_in_the_cache_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repository, name: str(tmp_path / name))
    assert machine.probe_hub()["gpt2_cached"]
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repository, name: None)
    assert not machine.probe_hub()["gpt2_cached"]
