"""What the wheel carries: data, licences, and packages that work from the wheel alone."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nanoinfer.cli.plugins import EXTRAS
from tests.book.chapter_pages import ROOT, checkout

DATA = (
    "gpt2.tiktoken", "generate.schema.json", "doctor.schema.json", "small/model.safetensors", "small/config.json",
    "small/README.md", "small/sources.tsv",
)  # fmt: skip
LESSONS = (
    "README.md", "exercises/ex1_attention.py", "exercises/ex1_attention.md", "exercises/quiz.json",
    "exercises/strength.json",
)  # fmt: skip

pytestmark = checkout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel carries."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    zipfile.ZipFile(built).extractall(folder / "site")
    return folder / "site"


def run(site: Path, here: Path, *arguments: str, code: int = 0) -> str:
    """What `python` with these arguments prints in the folder `here`, with the packages of the wheel alone."""
    environment = os.environ | {"PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", *arguments]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_it_carries_data_lessons_and_licences(site: Path) -> None:
    names = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert names >= {f"nanoinfer/data/{data}" for data in DATA}
    assert names >= {f"nanocourse/book/chapters/01-naive/{file}" for file in LESSONS}
    assert "nanocourse/book/chapters/syllabus.toml" in names
    assert not [name for name in names if name.endswith((".pyc", "my-course"))]
    (info,) = site.glob("*.dist-info")
    assert {"LICENSE", "LICENSE-TEXT", "THIRD_PARTY.md"} <= {path.name for path in (info / "licenses").iterdir()}
    text = (info / "licenses" / "THIRD_PARTY.md").read_text(encoding="utf-8")
    assert "Software Copyright (c) 2019 OpenAI" in text  # of the tokens


def test_it_names_every_extra_and_brings_every_plug_in(site: Path, tmp_path: Path) -> None:
    code = "import nanobench, nanobook, nanocourse; print(nanobench.__file__, nanobook.__file__, nanocourse.__file__)"
    assert all(Path(file).is_relative_to(site) for file in run(site, tmp_path, "-c", code).split())
    (info,) = site.glob("*.dist-info")
    for command, extra in EXTRAS.items():
        assert f"\n{command} = " in (info / "entry_points.txt").read_text(encoding="utf-8")
        assert f"\nProvides-Extra: {extra}\n" in (info / "METADATA").read_text(encoding="utf-8")
    assert "Chapter 1" in run(site, tmp_path, "-m", "nanoinfer", "read", "1", "--terminal")
    assert "run" in run(site, tmp_path, "-m", "nanoinfer", "bench", "-h")


def test_command_and_course_work(site: Path, tmp_path: Path) -> None:
    nanoinfer = ("-m", "nanoinfer")
    written = run(site, tmp_path, *nanoinfer, "generate", "Once upon", "--max-tokens", "4", "--device", "cpu")
    assert written.strip()
    run(site, tmp_path, *nanoinfer, "course", "start", "1")
    assert "1.4 The filters: not begun" in run(site, tmp_path, *nanoinfer, "course", "check", "1.4", code=1)
    assert not (site / "my-course").exists()
