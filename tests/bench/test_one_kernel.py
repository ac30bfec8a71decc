"""Chapter 6's benchmark: what it refuses, and the numbers that its programs must give each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanobench.micro.one_kernel import measure


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
