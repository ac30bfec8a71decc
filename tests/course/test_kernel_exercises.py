"""Kernel exercises: interpreted between guard zones, compiled without a GPU, and not run where there is no Triton."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nanocourse.authoring import mutants
from nanocourse.checks.check import check_exercise
from nanocourse.checks.results import ExerciseResult
from nanocourse.checks.worker import Worker
from nanocourse.exercises import chapters, kernels, sources
from nanocourse.exercises.exercise import COMPILES, Exercise
from nanoinfer.devices import has_triton

triton = pytest.mark.skipif(not has_triton(), reason="there are no wheels of Triton here")
compiler = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled"
)
CONSTANTS = {"H": 12, "D": 64, "PAGE": 16}


@pytest.fixture(scope="module")
def exercise() -> Exercise:
    return chapters.exercise("3.6")


@pytest.fixture(scope="module")
def reference(exercise: Exercise) -> str:
    """The right kernel, as a learner would have written it."""
    return sources.whole_file(exercise, exercise.function, sources.function_source(exercise.function))


def checked(exercise: Exercise, source: str, folder: Path, checks: int | None = None) -> ExerciseResult:
    """checks: only the first so many; the last one compiles, which takes a worker of its own."""
    path = folder / exercise.file
    path.write_text(source, encoding="utf-8")
    return check_exercise(replace(exercise, checks=exercise.checks[:checks]), path, Worker)


def first(result: ExerciseResult) -> str:
    """What came in the first check that failed."""
    return next(check.failure.got for check in result.checks if check.failure is not None)


class TestWithoutTriton:
    def test_is_not_run_and_says_why(
        self, exercise: Exercise, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kernels, "has_triton", lambda: False)
        monkeypatch.setattr(kernels.platform, "system", lambda: "Darwin")
        result = checked(exercise, reference, tmp_path)
        assert result.status == "not run"
        assert "needs Triton, which has no wheel for Darwin: check it on Linux, in WSL2 or on Colab" in result.problem

    def test_the_others_are_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernels, "has_triton", lambda: False)
        other = chapters.exercise("3.4")
        source = sources.whole_file(other, other.function, sources.function_source(other.function))
        assert checked(other, source, tmp_path).status == "passed"

    def test_the_exercise_can_be_shown(self) -> None:
        """Its file imports no Triton."""
        source = chapters.exercise("3.6").path.read_text(encoding="utf-8")
        assert "\nimport triton" not in source
        assert "if TYPE_CHECKING" in source


@triton
class TestInterpreted:
    def test_the_reference_passes(self, exercise: Exercise, reference: str, tmp_path: Path) -> None:
        result = checked(exercise, reference, tmp_path)
        assert result.status == "passed"
        assert result.receipt.lines_run == result.receipt.lines > 10
        assert result.printed == ""

    def test_writing_past_the_end_is_seen(self, exercise: Exercise, reference: str, tmp_path: Path) -> None:
        result = checked(exercise, reference.replace("tl.store(out + ", "tl.store(out + 2 + "), tmp_path, 1)
        assert "the kernel wrote outside of its buffers" in first(result)

    def test_writing_into_what_is_read_is_seen(self, exercise: Exercise, reference: str, tmp_path: Path) -> None:
        clean = reference.replace(
            "    tl.store(out", "    tl.store(q + (row * H + head) * D + d, acc)\n    tl.store(out"
        )
        assert "the kernel changed q, which it is to read" in first(checked(exercise, clean, tmp_path, 1))

    def test_reading_past_the_end_is_seen(self, exercise: Exercise, reference: str, tmp_path: Path) -> None:
        """A pool read beyond its end gives NaN, and no lucky zeros."""
        result = checked(
            exercise, reference.replace("tl.load(v_pool + at,", "tl.load(v_pool + H * 4096 + at,"), tmp_path
        )
        assert result.status in ("failed", "crashed")

    def test_without_its_decorator(self, exercise: Exercise, reference: str, tmp_path: Path) -> None:
        result = checked(exercise, reference.replace("@triton.jit\n", ""), tmp_path, 1)
        assert "the line above its `def` reads @triton.jit" in first(result)

    def test_an_error_within_it_is_told_with_its_line(self, exercise: Exercise, reference: str, tmp_path: Path) -> None:
        """Not as the interpreter's own error around it."""
        result = checked(exercise, reference.replace("tl.maximum(maximum,", "tl.maximum(maximum[3, 4],"), tmp_path, 1)
        assert "(line " in first(result)
        assert "higher = tl.maximum(maximum[3, 4]" in first(result)

    @pytest.mark.parametrize(
        "old, new, told",
        [
            ("tl.maximum(maximum,", "tl.maximum(nothing,", "a kernel does not know 'nothing'"),
            ("row, head =", "if hasattr(q, 'x'):\n        return\n    row, head =", "a kernel does not know 'hasattr'"),
            ("row, head =", "tl.core.os.abort()\n    row, head =", "a kernel has no `tl.core.os"),
            ("row, head =", "import torch\n    row, head =", "a kernel has no `import torch`"),
        ],
    )  # fmt: skip
    def test_what_is_no_kernel_is_refused(
        self, exercise: Exercise, reference: str, tmp_path: Path, old: str, new: str, told: str
    ) -> None:
        """What could tell the interpreter, which is checked, from the compiler, which is checked too."""
        result = checked(exercise, reference.replace(old, new, 1), tmp_path, 1)
        assert result.status == "not run"
        assert told in result.problem
        assert "line " in result.problem

    def test_only_the_kernels_of_a_file_are_run(self, exercise: Exercise, reference: str, tmp_path: Path) -> None:
        """And what stands around them, in every learner's file, is no reason to refuse it."""
        others = "\nimport os\nos._exit(3)\n\ndef helper():\n    return os.getpid()\n"
        assert checked(exercise, reference + others, tmp_path, 1).status != "crashed"
        twice = reference + "\n@triton.jit\ndef attend_kernel(q):\n    pass\n"
        assert "more than once" in checked(exercise, twice, tmp_path, 1).problem
        replaced = reference + "\nattend_kernel = print\n"
        assert "must be made by `def` alone" in checked(exercise, replaced, tmp_path, 1).problem

    def test_an_interpreted_one_that_does_not_compile_fails(
        self, exercise: Exercise, reference: str, tmp_path: Path
    ) -> None:
        result = checked(exercise, reference.replace('-float("inf"), 0.0,', '-float("inf"), 0,'), tmp_path)
        assert [check.name for check in result.checks if check.status == "failed"] == ["compiles"]
        assert "compute capability 7.5: `for start in range(0, length, PAGE):`" in first(result)
        assert "variable total has initial type int32 but is re-assigned to fp32" in first(result)


@triton
@compiler
class TestCompiled:
    def kernel(self, source: str) -> object:
        return kernels.from_source(source, "attend_kernel", "a test")

    def test_the_reference(self, exercise: Exercise, reference: str) -> None:
        assert exercise.spec.kernel is not None
        types = chapters.run_file(exercise.spec.kernel.launcher, "launcher_of_a_test").TYPES
        assert kernels.compiled(self.kernel(reference), types, CONSTANTS) == COMPILES
        wrong = reference.replace("tl.arange(0, PAGE)", "tl.arange(0, width)")
        assert "arange" in kernels.compiled(self.kernel(wrong), types, CONSTANTS)
        wrong = reference.replace("range(0, length, PAGE):\n", "range(0, length, PAGE):\n        continue\n")
        assert "`continue`" in kernels.compiled(self.kernel(wrong), types, CONSTANTS)

    def test_what_no_run_would_show(self, exercise: Exercise, reference: str) -> None:
        """Loads of less than a page, and offsets of 32 bits: both give the right numbers in the interpreter."""
        assert exercise.spec.kernel is not None
        launcher = chapters.run_file(exercise.spec.kernel.launcher, "launcher_of_a_test")

        def told(source: str) -> str:
            return kernels.compiled(self.kernel(source), launcher.TYPES, CONSTANTS, launcher.fault)

        assert told(reference) == COMPILES
        narrow = reference.replace(".to(tl.int64)", "")
        assert told(narrow).startswith("it adds offsets of 32 bits to k_pool")
        apart = reference.replace("(block * H + head)", "head").replace(
            "_pool + at", "_pool + block * H * PAGE * D + at"
        )
        assert told(apart) == COMPILES  # offsets within a block may have 32 bits
        assert told(apart.replace(".to(tl.int64)", "")).startswith("it adds offsets of 32 bits")
        small = (exercise.path.parents[1] / "small_kernel.py").read_text(encoding="utf-8")
        assert told(small) == "it loads at most 64 numbers at once, and one head's part of a page has 1024"

    def test_an_untouched_stub_says_so(self) -> None:
        stub = '@triton.jit\ndef attend_kernel(q):\n    raise NotImplementedError("ch03.ex6 attend_kernel: x")\n'
        with pytest.raises(NotImplementedError, match=r"ch03\.ex6 attend_kernel: x"):
            kernels.compiled(self.kernel("import triton\n" + stub), {"q": "*fp32"}, {})


class TestInTheEngine:
    def test_is_refused_where_triton_came_first(self, exercise: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        monkeypatch.delenv(kernels.INTERPRET, raising=False)
        monkeypatch.setitem(sys.modules, "triton", sys)
        with pytest.raises(ValueError, match="TRITON_INTERPRET=1 stands before Triton is imported"):
            kernels.in_engine(exercise, lambda: None)

    def test_the_interpreter_is_chosen(self, exercise: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        monkeypatch.setenv(kernels.INTERPRET, "")
        for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
            monkeypatch.delitem(sys.modules, name)
        assert callable(kernels.in_engine(exercise, lambda: None))
        assert os.environ[kernels.INTERPRET] == "1"


def test_mutants_keep_a_kernels_constants(exercise: Exercise) -> None:
    found = mutants.mutants(sources.function_source(exercise.function))
    assert len(found) > 100
    assert all("PAGE: tl.constexpr" in mutant.source for mutant in found)
