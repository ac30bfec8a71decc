"""Chapter 6's benchmark: what it refuses, and that the file which the book quotes holds what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nanobench.core.records import RESULTS
from nanobench.micro.one_kernel import measure
from nanobench.micro.one_kernel_records import OneKernelReport


def test_it_needs_a_gpu_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a CUDA GPU: its kernels wait for each other"):
        measure("cpu", tmp_path / "found.json", "gpt2", (1,), texts=False)
    assert not any(tmp_path.iterdir())


def test_what_programs_give_each_other_is_worked_out_by_another_way() -> None:
    pytest.importorskip("triton", reason="there are no wheels of Triton here")
    from nanobench.micro.one_kernel_parts import ROUNDS, _expected

    mine = [program % 7 for program in range(132)]
    for _ in range(ROUNDS):
        total = sum(mine)
        mine = [(each + total) % 7 for each in mine]
    assert _expected(132).tolist() == mine


def test_the_file_of_the_book_times_no_way_whose_tokens_are_wrong() -> None:
    report = OneKernelReport.model_validate_json((RESULTS / "h200-one-kernel.json").read_bytes())
    assert re.fullmatch(r"[0-9a-f]{7,}", report.commit)
    by_arm = {step.arm: step for step in report.steps if not step.sampled}
    assert [arm for arm, step in by_arm.items() if step.same is None] == ["one kernel, nobody waits"]
    assert all(step.same >= 500 and step.short < 0.01 for step in by_arm.values() if step.same is not None)
    medians = [by_arm[arm].seconds.median for arm in ("paged-graph", "fused, none early", "fused", "one kernel")]
    assert medians == sorted(medians, reverse=True)
    for one in report.generated:
        assert len(one.tokens_per_s.samples) >= 3
