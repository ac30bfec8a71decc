"""What the wheel carries: data, licences, and a package that works from the wheel alone."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("not a checkout")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_carries_data_and_licences(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    small = ("small/model.safetensors", "small/config.json", "small/README.md", "small/sources.tsv")
    for data in ("gpt2.tiktoken", "generate.schema.json", "doctor.schema.json", *small):
        assert f"nanoinfer/data/{data}" in names
    for licence in ("LICENSE", "LICENSE-TEXT", "THIRD_PARTY.md"):
        assert any(name.endswith(f".dist-info/licenses/{licence}") for name in names), licence


def test_wheel_carries_the_licence_text_of_the_bpe(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("THIRD_PARTY.md"))
    text = archive.read(name).decode("utf-8")
    assert "Software Copyright (c) 2019 OpenAI" in text
    assert "Permission is hereby granted" in text


def test_the_command_works_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-P" if sys.version_info >= (3, 11) else "-B",
        "-m",
        "nanoinfer",
        "generate",
        "Once upon",
    ]
    options = ["--max-tokens", "4", "--device", "cpu"]
    result = subprocess.run(
        command + options, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_the_course_works_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for file in ("README.md", "exercises/ex1_attention.py", "exercises/quiz.json", "exercises/strength.json"):
        assert f"nanocourse/book/chapters/01-naive/{file}" in names
    assert "nanocourse/book/chapters/syllabus.toml" in names
    assert not [name for name in names if name.endswith((".pyc", "my-course"))]
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    for arguments, code in ((["start", "1"], 0), (["check", "1.4"], 1)):
        command = [
            sys.executable,
            "-P" if sys.version_info >= (3, 11) else "-B",
            "-m",
            "nanoinfer",
            "course",
            *arguments,
        ]
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == code, result.stderr
    assert "1.4 The filters: not begun" in result.stdout
    assert not (tmp_path / "site" / "my-course").exists()
