"""compute-sanitizer's answers, by a stand-in that gives them; and the kernels' cases themselves, in the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nanobench.micro import sanitize as tool
from nanobench.micro.sanitize import FOUND, Execute, Run, SanitizeReport, sanitize
from nanobench.micro.sanitize_cases import CASES, PLANTED


@pytest.fixture(autouse=True)
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool.shutil, "which", lambda name, path: f"/usr/bin/{name}")


def answers(memcheck: int = 0, racecheck: int = 0, planted: int = 3, ran: bool = True) -> Execute:
    """What the tool says: so many errors of clean cases and of the planted one."""

    def execute(command: Sequence[str]) -> Run:
        if "--version" in command:
            return Run(command, 0, "NVIDIA (R) Compute Sanitizer\nVersion 2025.3.1\n")
        cases = command[command.index("nanobench.micro.sanitize_cases") + 1 :]
        text = "".join(f"ran: {name}\n" for name in cases if name not in PLANTED and ran)
        if "--tool=racecheck" in command:
            errors, text = racecheck, f"{text}========= RACECHECK SUMMARY: {racecheck} hazards displayed\n"
        else:
            errors = planted if list(cases) == list(PLANTED) else memcheck
            text += "========= Invalid __global__ write of size 4 bytes\n" * errors
            text += f"========= ERROR SUMMARY: {errors} errors\n"
        return Run(command, FOUND if errors else int(not ran), text)

    return execute


def test_clean_and_caught(tmp_path: Path) -> None:
    assert sanitize(out=tmp_path / "s.json", execute=answers()) == 0
    report = SanitizeReport.model_validate_json((tmp_path / "s.json").read_bytes())
    assert report.tool == "Version 2025.3.1"
    assert [(f.tool, f.errors, f.as_expected) for f in report.findings] == [
        ("memcheck", 0, True), ("racecheck", 0, True), ("memcheck", 3, True),
    ]  # fmt: skip
    assert report.findings[2].first == "Invalid __global__ write of size 4 bytes"
    assert report.findings[0].cases == tuple(CASES)


@pytest.mark.parametrize("execute", [answers(memcheck=1), answers(racecheck=2), answers(planted=0), answers(ran=False)])
def test_anything_else_is_not_as_expected(execute: Execute, capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize(["attend", "sample"], execute=execute) == 1
    assert "NOT AS EXPECTED" in capsys.readouterr().out


def test_a_machine_that_refuses_is_said() -> None:
    refusal = "========= Error: Device not supported. Please refer to the documentation\n"
    with pytest.raises(ValueError, match=r"refuses this machine .Device not supported.; nothing was checked"):
        sanitize(execute=lambda command: Run(command, 1, refusal))


@pytest.mark.long
def test_every_case_is_right_in_the_interpreter() -> None:
    """What is searched for overruns must first be right; and the planted case writes where nothing of it lies."""
    pytest.importorskip("triton", reason="there are no wheels of Triton here")
    code = "import torch; torch.set_num_threads(1); from nanobench.micro.sanitize_cases import main; main([], 'cpu')"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [f"ran: {name}" for name in CASES]
