"""Files whose kernels Triton's interpreter runs where there is no GPU, each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import passed_in_the_interpreter
from tests.engine.kernel_cases import RUNS_HERE

LEAST = {"paged_attention": 70, "sampling_kernels": 50, "few_rows": 18, "fused": 20, "reduce_norm": 18}  # must pass


@pytest.mark.skipif(RUNS_HERE, reason="kernels run in this process")
@pytest.mark.long
@pytest.mark.parametrize("name", LEAST)
def test_kernels(name: str) -> None:
    pytest.importorskip("triton", reason="there are no wheels of Triton here")
    file = f"{Path(__file__).parent}/test_{name}.py"
    assert passed_in_the_interpreter(file, "--timeout", "1200") >= LEAST[name]  # a test may take long on a busy machine
