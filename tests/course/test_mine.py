"""`nanoinfer generate --mine`: a learner's own functions run in the engine, with the tokens of the reference."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nanocourse.exercises import chapters
from nanoinfer import cli
from nanoinfer.devices import has_triton
from tests.course.learner_files import Told, answer, own


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def generate(*arguments: str) -> Told:
    """`nanoinfer generate` in a process of its own: the engine is changed in it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nanoinfer", "generate", "Once upon", "--device", "cpu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return Told(done.returncode, done.stdout, done.stderr)


def test_ones_own_functions_run_in_the_engine(here: Path) -> None:
    own(here, "1.1", answer("1.1", "query-by-query"))
    own(here, "1.3", answer("1.3", "last-column"))
    own(here, "1.7", answer("1.7", "layer-by-layer"))
    options = ["-n", "6", "--seed", "3"]
    mine = generate(*options, "--mine", "my-course")
    assert mine.code == 0, mine.err
    assert mine.out == generate(*options, "--engine", "naive", "-q").out
    for part in (
        "1.1 Attention with given positions: yours",
        "1.3 The logits that count: the reference's (failed)",
        "1.7 What a pass costs: the reference's (it has no place in the engine)",
        "tokens/s",
        "the same tokens",
    ):
        assert part in mine.err


def test_ones_own_recorded_steps_run_without_a_gpu(here: Path) -> None:
    """By the stand-in, which is said, and the warning that a CPU records none is not; -v counts the learner's run."""
    own(here, "4.4", answer("4.4", "by-doublings"))
    mine = generate("-n", "6", "--greedy", "--engine", "paged-graph", "-v", "--mine", "my-course")
    assert mine.code == 0, mine.err
    assert "steps were recorded by the stand-in: 6 of 6 decode steps were replayed" in mine.err
    assert "a CPU records no steps" not in mine.err
    assert re.search(r"^replayed_steps +6$", mine.err, re.M)
    assert "the same tokens" in mine.err


@pytest.mark.skipif(not has_triton(), reason="there are no wheels of Triton here")
@pytest.mark.long
def test_a_kernel_of_ones_own_runs_without_a_gpu(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command chooses Triton's interpreter, before later chapters import Triton; where it passed, 3.7 is idle."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    own(here, "3.6", answer("3.6", "keys-as-they-are"))
    own(here, "3.7", answer("3.7", chapters.exercise("3.7").right[0].name))
    options = ["-n", "2", "--greedy", "--mine", "my-course"]
    mine = generate(*options)
    assert mine.code == 0, mine.err
    assert "3.6 The kernel over one row's pages: yours" in mine.err
    assert "the same tokens" in mine.err
    assert "never called: your 3.6 does not split" in mine.err
    own(here, "3.6", answer("3.6", "no-tail-mask"))
    mine = generate(*options)
    assert "3.6 The kernel over one row's pages: the reference's (failed)" in mine.err
    assert "never called" not in mine.err  # 3.7 has its place again, and nothing is interpreted


def test_mine_without_anything_that_passes_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(here, "1.7", answer("1.7", "layer-by-layer"))
    assert cli.run(["generate", "x", "--mine", "my-course"]) == 2
    assert "no function that passes its checks and has a place in the engine" in capsys.readouterr().err
    assert cli.run(["generate", "x", "--mine", "nowhere"]) == 2
    assert "nowhere has no exercise's file" in capsys.readouterr().err
