"""Kernel exercises: interpreted between guard zones, compiled without a GPU, and not run where there is no Triton."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nanocourse.checks.check import check_exercise
from nanocourse.checks.results import ExerciseResult
from nanocourse.checks.worker import Worker
from nanocourse.exercises import chapters, kernels
from nanocourse.exercises.exercise import COMPILES
from nanoinfer.kernels.available import has_triton
from tests.course.learner_files import Keep, checked, right_file

triton = pytest.mark.skipif(not has_triton(), reason="there are no wheels of Triton here")
EXERCISE = chapters.exercise("3.6")
RIGHT = right_file(EXERCISE)


def interpreted(folder: Path, source: str, keep: Keep) -> ExerciseResult:
    """What the first check finds of a source."""
    return checked(replace(EXERCISE, checks=EXERCISE.checks[:1]), source, folder, keep)


def first(result: ExerciseResult) -> str:
    """What came in the first check that failed."""
    return next(check.failure.got for check in result.checks if check.failure is not None)


def test_without_triton_it_is_not_run_and_says_why(tmp_path: Path, keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "has_triton", lambda: False)
    monkeypatch.setattr(kernels.platform, "system", lambda: "Darwin")
    result = interpreted(tmp_path, RIGHT, keep)
    assert result.status == "not run"
    assert "needs Triton, which has no wheel for Darwin: check it on Linux, in WSL2 or on Colab" in result.problem
    assert not kernels.why_not(chapters.exercise("3.4"))
    assert "\nimport triton" not in EXERCISE.path.read_text(encoding="utf-8")  # so it can be shown


@triton
def test_the_reference_passes_and_what_stands_around_it_is_not_run(tmp_path: Path, keep: Keep) -> None:
    others = "\nimport os\nos._exit(3)\n\ndef helper():\n    return os.getpid()\n"
    result = interpreted(tmp_path, RIGHT + others, keep)
    assert result.status == "passed"
    assert result.receipt.lines_run == result.receipt.lines > 10
    assert result.printed == ""


WITHOUT_BOUNDS = "    tl.store(q + (row * H + head) * D + d, acc)\n    tl.store(out"
FAIL = [
    ("tl.store(out + ", "tl.store(out + 2 + ", "the kernel wrote outside of its buffers"),
    ("    tl.store(out", WITHOUT_BOUNDS, "the kernel changed q, which it is to read"),
    ("@triton.jit\n", "", "the line above its `def` reads @triton.jit"),
    ("tl.maximum(maximum,", "tl.maximum(maximum[3, 4],", "higher = tl.maximum(maximum[3, 4]"),  # its own line
]


@triton
@pytest.mark.parametrize(("old", "new", "told"), FAIL)
def test_what_an_interpreted_kernel_must_not_do_is_seen(
    tmp_path: Path, keep: Keep, old: str, new: str, told: str
) -> None:
    assert told in first(interpreted(tmp_path, RIGHT.replace(old, new), keep))


# What could tell the interpreter from the compiler, both of which are checked.
REFUSED = [
    ("tl.maximum(maximum,", "tl.maximum(nothing,", "a kernel does not know 'nothing'"),
    ("row, head =", "if hasattr(q, 'x'):\n        return\n    row, head =", "a kernel does not know 'hasattr'"),
    ("row, head =", "tl.core.os.abort()\n    row, head =", "a kernel has no `tl.core.os"),
    ("@triton.jit", "@triton.jit\ndef attend_kernel(q):\n    pass\n\n@triton.jit", "more than once"),
    ("@triton.jit", "attend_kernel = print\n@triton.jit", "must be made by `def` alone"),
]


@triton
@pytest.mark.parametrize(("old", "new", "told"), REFUSED)
def test_what_is_no_kernel_is_refused(tmp_path: Path, keep: Keep, old: str, new: str, told: str) -> None:
    result = interpreted(tmp_path, RIGHT.replace(old, new, 1), keep)
    assert result.status == "not run"
    assert told in result.problem


@triton
def test_a_kernel_that_runs_and_does_not_compile_fails(tmp_path: Path) -> None:
    (tmp_path / EXERCISE.file).write_text(RIGHT.replace('-float("inf"), 0.0,', '-float("inf"), 0,'), encoding="utf-8")
    ends = replace(EXERCISE, checks=(EXERCISE.checks[0], EXERCISE.checks[-1]))
    result = check_exercise(ends, tmp_path / EXERCISE.file, Worker)
    assert [check.name for check in result.checks if check.status == "failed"] == ["compiles"]
    assert "compute capability 7.5: `for start in range(0, length, PAGE):`" in first(result)


def compiled(source: str) -> str:
    """What the compiler says of a source, and of its offsets and loads, which no run would show."""
    assert EXERCISE.spec.kernel is not None
    launcher = chapters.run_file(EXERCISE.spec.kernel.launcher, "launcher_of_a_test")
    kernel = kernels.from_source(source, "attend_kernel", "a test")
    return kernels.compiled(kernel, launcher.TYPES, {"H": 12, "D": 64, "PAGE": 16}, launcher.fault)


@triton
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled")
def test_a_kernel_is_compiled_for_gpus_that_are_not_here() -> None:
    assert compiled(RIGHT) == COMPILES
    assert "arange" in compiled(RIGHT.replace("tl.arange(0, PAGE)", "tl.arange(0, width)"))
    loop = "range(0, length, PAGE):\n"
    assert "`continue`" in compiled(RIGHT.replace(loop, f"{loop}        continue\n"))
    assert compiled(RIGHT.replace(".to(tl.int64)", "")).startswith("it adds offsets of 32 bits to k_pool")
    small = (EXERCISE.path.parents[1] / "small_kernel.py").read_text(encoding="utf-8")
    assert compiled(small) == "it loads at most 64 numbers at once, and one head's part of a page has 1024"
