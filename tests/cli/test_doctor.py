"""`nanoinfer doctor`: what it says on machines that have less, or more, than this one."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from nanoinfer.cli import doctor
from nanoinfer.config import ENGINES
from nanoinfer.model.config import PRESETS
from tests.cli.commands import Result, assert_refused, run_without

GPU = {"name": "GPU [bold]", "capability": "9.0", "free_bytes": 100 << 30, "total_bytes": 140 << 30}
NO_TORCH = {"version": None, "cuda_build": None, "problem": "torch is gone: install it", "gpus": []}
CPU_TORCH = {"version": "2.13", "cuda_build": None, "problem": None, "gpus": []}
GPU_TORCH = {"version": "2.13", "cuda_build": "13.0", "problem": None, "gpus": [GPU]}
ALL_ENGINES = ("naive", "dense", "paged", "dense-graph", "paged-graph", "fused")


def validate(report: dict[str, Any]) -> None:
    schema = json.loads(files("nanoinfer").joinpath("data/doctor.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(report, schema, cls=jsonschema.Draft202012Validator)


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The report of a machine that has this torch, driver and Triton, and where this goes wrong at a first run."""

    def report(torch: dict[str, Any], driver: str | None = None, triton: str | None = None, problem: Any = None) -> Any:
        found = {"version": triton, "interpret": False, "remedy": None if triton else "get it"}
        for name, value in (("torch", torch), ("driver", driver), ("triton", found), ("run", problem)):
            monkeypatch.setattr(doctor, f"probe_{name}", lambda value=value: value)
        monkeypatch.setattr(doctor, "ENGINES", ALL_ENGINES)
        made = doctor.examine()
        validate(made)
        return made

    return report


def test_this_machine(invoke: Any) -> None:
    result = invoke("doctor", "--json")
    assert (result.code, result.err) == (0, "")
    report = json.loads(result.out)
    validate(report)
    assert report["runs"]
    assert [engine["name"] for engine in report["engines"]] == list(ENGINES)
    result = invoke("doctor")
    assert (result.code, result.err) == (0, "")
    assert [name for name in (*PRESETS, *ENGINES) if name not in result.out] == []
    assert re.search(r"^  auto +dense\n", result.out, re.MULTILINE) or torch.cuda.is_available()
    assert result.out.endswith("nanoinfer runs here.\n")


@pytest.mark.parametrize("content", ["raise OSError('libtorch.so is gone')", ""])
def test_a_broken_torch_is_told(content: str, tmp_path: Path) -> None:
    """The second one is a torch that has nothing in it."""
    (tmp_path / "torch.py").write_text(content)
    lines = ["doctor", "--json"], ["doctor"], ["generate", "x"]
    as_json, plain, generate = run_without([], *lines, path=str(tmp_path))
    for code, out, err, _ in (as_json, plain):
        assert (code, err) == (1, "")
        assert "install it again" in out
    validate(json.loads(as_json[1]))
    if content:
        assert_refused(Result(*generate[:3]), "libtorch.so", "doctor", code=1)


def test_a_gpu_runs_all_and_without_triton_lacks_the_paged_engines(examine: Any) -> None:
    report = examine(GPU_TORCH, driver="580.1", triton="3.7")
    assert [one["name"] for one in report["engines"] if not one["runs"] or one["remedy"] or one["note"]] == []
    assert report["cuda_remedy"] is None
    shown = doctor.show(report)
    for part in ("GPU [bold]", "9.0", "580.1", "CUDA 13.0", "cuda:0 bfloat16", "100.0 GiB"):
        assert part in shown
    assert examine(GPU_TORCH | {"gpus": [GPU | {"capability": "7.5"}]})["memory"][1]["dtype"] == "float16"
    assert re.search(r"^  auto +fused$", shown, re.MULTILINE)
    assert re.search(r"^  auto +dense-graph$", doctor.show(examine(GPU_TORCH, driver="580.1")), re.MULTILINE)
    engines = examine(GPU_TORCH, driver="580.1")["engines"]
    lacking = {engine["name"]: "get it" in engine["remedy"] for engine in engines if not engine["runs"]}
    assert lacking == {"paged": True, "paged-graph": True, "fused": True}


def test_on_a_cpu_every_engine_runs_without_kernels_and_graphs(examine: Any) -> None:
    report = examine(CPU_TORCH)
    paged, graph = "on a CPU the kernels' PyTorch reference runs", "no step is captured"
    notes = [None, None, paged, f"on a CPU {graph}", f"{paged} and {graph}", f"{paged} and {graph}"]
    assert [engine["note"] for engine in report["engines"] if engine["runs"]] == notes


def test_what_goes_wrong_keeps_every_engine_from_running(examine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report = examine(NO_TORCH)
    assert not report["runs"]
    assert {engine["remedy"] for engine in report["engines"]} == {"torch is gone: install it"}
    assert doctor.show(report).endswith("does not run here: torch is gone: install it.\n")
    assert examine(CPU_TORCH, problem="it fell over")["problem"] == "it fell over"
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    assert examine(CPU_TORCH)["problem"] == "pip install tiktoken safetensors huggingface_hub"
    monkeypatch.setattr(doctor, "free_host_memory", lambda: None)
    assert "unknown" in doctor.show(examine(CPU_TORCH))


def test_a_batch_is_what_fits_beside_the_weights() -> None:
    weights, row = 4 * (124_439_808 + 47 * 768), 4 * 2 * 12 * 768 * 1024  # 47 rows make the head a multiple of 64
    for free, rows in ((weights + 3 * row, 3), (weights + 3 * row - 1, 2), (weights - 1, 0)):
        batch = doctor.batches(free, 4)
        assert batch
        assert batch["gpt2"] == rows
