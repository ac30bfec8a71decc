"""What the wheel carries: data, licences, and a package that works from the wheel alone."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nanoinfer.cli.plugins import EXTRAS

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


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel carries."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def run(site: Path, here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python` with these arguments in the folder `here`, with the packages of the wheel alone."""
    environment = os.environ | {"PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", *arguments]
    return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)


def test_the_command_works_from_the_wheel_alone(site: Path, tmp_path: Path) -> None:
    options = ["--max-tokens", "4", "--device", "cpu"]
    result = run(site, tmp_path, "-m", "nanoinfer", "generate", "Once upon", *options)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_the_wheel_brings_every_plug_in_and_names_every_extra(site: Path, tmp_path: Path) -> None:
    code = "import nanobench, nanobook, nanocourse; print(nanobench.__file__, nanobook.__file__, nanocourse.__file__)"
    found = run(site, tmp_path, "-c", code).stdout.split()
    assert len(found) == 3
    assert all(Path(file).is_relative_to(site) for file in found), found
    described = {path.name: path.read_text(encoding="utf-8") for path in site.glob("*.dist-info/*") if path.is_file()}
    for command, extra in EXTRAS.items():
        assert f"\n{command} = " in described["entry_points.txt"]
        assert f"\nProvides-Extra: {extra}\n" in described["METADATA"]
    for arguments, told in (
        (["--help"], "bench"),
        (["read", "1", "--terminal"], "Chapter 1"),
        (["bench", "-h"], "run"),
    ):
        result = run(site, tmp_path, "-m", "nanoinfer", *arguments)
        assert (result.returncode, result.stderr) == (0, ""), arguments
        assert told in result.stdout


def test_the_course_works_from_the_wheel_alone(wheel: Path, site: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for file in ("README.md", "exercises/ex1_attention.py", "exercises/quiz.json", "exercises/strength.json"):
        assert f"nanocourse/book/chapters/01-naive/{file}" in names
    assert "nanocourse/book/chapters/syllabus.toml" in names
    assert not [name for name in names if name.endswith((".pyc", "my-course"))]
    for arguments, code in ((["start", "1"], 0), (["check", "1.4"], 1)):
        result = run(site, tmp_path, "-m", "nanoinfer", "course", *arguments)
        assert result.returncode == code, result.stderr
    assert "1.4 The filters: not begun" in result.stdout
    assert not (site / "my-course").exists()
