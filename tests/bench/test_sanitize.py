"""compute-sanitizer's answers, by a stand-in that gives them; and the kernels' cases themselves, in the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nanobench.micro import sanitize as tool
from nanobench.micro.sanitize import FOUND, Run, SanitizeReport, find, sanitize
from nanobench.micro.sanitize_cases import CASES, PLANTED

ROOT = Path(__file__).parents[2]


@dataclass
class Answers:
    """What the tool says of clean cases and of the planted one."""

    memcheck: int = 0
    racecheck: int = 0
    planted: int = 3
    broken: bool = False  # the program under the tool fails by itself
    refusal: str = ""
    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, command: Sequence[str]) -> Run:
        self.calls.append(list(command))
        if "--version" in command:
            return Run(0, "NVIDIA (R) Compute Sanitizer\nVersion 2025.3.1\n")
        cases = command[command.index("nanobench.micro.sanitize_cases") + 1 :]
        ran = "".join(f"ran: {name}\n" for name in cases if name not in PLANTED and not self.broken)
        if self.refusal:
            return Run(1, f"========= Error: {self.refusal}\n")
        if "--tool=racecheck" in command:
            summary = f"========= RACECHECK SUMMARY: {self.racecheck} hazards displayed ({self.racecheck} errors)"
            return Run(FOUND if self.racecheck else 0, f"{ran}{summary}\n")
        errors = self.planted if list(cases) == list(PLANTED) else self.memcheck
        invalid = "========= Invalid __global__ write of size 4 bytes\n" * errors
        code = FOUND if errors else int(self.broken)
        return Run(code, f"{ran}{invalid}========= ERROR SUMMARY: {errors} errors\n")


@pytest.fixture(autouse=True)
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool.shutil, "which", lambda name, path: f"/usr/bin/{name}")


def test_clean_and_caught(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = Answers()
    assert sanitize(out=tmp_path / "s.json", execute=answers) == 0
    report = SanitizeReport.model_validate_json((tmp_path / "s.json").read_bytes())
    assert report.tool == "Version 2025.3.1"
    assert [(f.tool, f.errors, f.as_expected) for f in report.findings] == [
        ("memcheck", 0, True), ("racecheck", 0, True), ("memcheck", 3, True),
    ]  # fmt: skip
    assert report.findings[2].first == "Invalid __global__ write of size 4 bytes"
    assert report.findings[0].cases == tuple(CASES)
    assert capsys.readouterr().out.count("as expected") == 3
    assert all("--padding=65536" in call for call in answers.calls if "--tool=memcheck" in call)


@pytest.mark.parametrize(
    "answers", [Answers(memcheck=1), Answers(racecheck=2), Answers(planted=0), Answers(broken=True)]
)
def test_anything_else_is_not_as_expected(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize(execute=answers) == 1
    assert "NOT AS EXPECTED" in capsys.readouterr().out


def test_a_machine_that_refuses_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"refuses this machine .Device not supported.; nothing was checked"):
        sanitize(execute=Answers(refusal="Device not supported. Please refer to the documentation"))


def test_no_tool_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool.shutil, "which", lambda name, path: None)
    with pytest.raises(ValueError, match="compute-sanitizer is not installed"):
        find()


def test_some_cases_alone() -> None:
    answers = Answers()
    assert sanitize(["attend", "sample"], execute=answers) == 0
    assert answers.calls[1][-2:] == ["attend", "sample"]
    with pytest.raises(ValueError, match=r"case must be one of write; .*, not 'nothing'"):
        sanitize(["nothing"], execute=answers)


def test_tensors_get_an_allocation_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        environment = options["env"]
        assert isinstance(environment, dict)
        assert environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
        return subprocess.CompletedProcess(command, 0, stdout="well")

    monkeypatch.setattr(tool.subprocess, "run", run)
    assert tool._execute(["x"]) == Run(0, "well")

    def hang(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 1.0)

    monkeypatch.setattr(tool.subprocess, "run", hang)
    assert tool._execute(["x"]).returncode == 124


def test_every_case_is_right_in_the_interpreter() -> None:
    """What is searched for overruns must first be right; and the planted case writes where nothing of it lies."""
    pytest.importorskip("triton", reason="there are no wheels of Triton here")
    code = "import torch; torch.set_num_threads(1); from nanobench.micro.sanitize_cases import main; main([], 'cpu')"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [f"ran: {name}" for name in CASES]
