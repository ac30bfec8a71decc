"""Kernels are compiled down to machine code, without a GPU: what the interpreter accepts the compiler may refuse."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import pytest

from nanoinfer.labs.one_kernel.shape import Shape
from nanoinfer.model.config import PRESETS
from tests.engine.kernel_cases import INTERPRETED, compiled

pytest.importorskip("triton", reason="there are no wheels of Triton here")

from nanoinfer.kernels import sampling

pytestmark = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels cannot be compiled")
ATTEND = {"H": 12, "D": 64, "D_POWER": 64, "PAGE": 16}
LINEAR = {"M_POWER": 64, "COLUMNS": 32, "STEP": 64, "SPLITS": 1, "GELU": True, "STAGES": 5}
SAMPLE = {"V": 50_257, "TILE": sampling.TILE, "FEW": sampling.FEW, "GROUPS": sampling.GROUPS}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {  # at GPT-2's sizes
    "paged_attention._write_kernel": ("fp16", {"H": 12, "D": 64, "PAGE": 16, "HD_POWER": 1024}),
    "paged_attention._attend_kernel splits": (
        "fp16", ATTEND | {"D": 80, "D_POWER": 128, "TILE": 64, "SPLITS": 4, "STAGES": 1},
    ),
    "paged_attention._attend_kernel whole": ("fp16", ATTEND | {"TILE": 32, "SPLITS": 1, "STAGES": 3}),
    "fused._add_norm_kernel": ("fp16", {"PARTS": 4, "C": 1600, "C_POWER": 2048}),
    "fused._linear_kernel": ("fp16", LINEAR),
    "sampling._sample_kernel": ("fp32", SAMPLE),
    "sampling._sample_kernel bf16": ("bf16", SAMPLE),
}  # fmt: skip


def kernel_of(name: str) -> Any:
    module, kernel = name.split(maxsplit=1)[0].split(".")
    return getattr(import_module(f"nanoinfer.kernels.{module}"), kernel)


@pytest.mark.long
@pytest.mark.parametrize("capability", [75, 90])
@pytest.mark.parametrize("name", FORMS)
def test_a_kernel(name: str, capability: int) -> None:
    dtype, constants = FORMS[name]
    logits = {"row": f"*{dtype}"} if name.startswith("sampling") else {}
    compiled(kernel_of(name), dtype, constants, capability, **logits)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_kernel_that_waits_for_ranks(dtype: str, capability: int) -> None:
    """A poll is in the loop, and a number that is waited for is read after it."""
    constants = {"RANK": 1, "SIZE": 2, "ROWS": 512, "PARTS": 1, "C": 1600, "C_POWER": 2048, "POLLS": 1 << 20}
    code = compiled(kernel_of("reduce_norm._reduce_norm_kernel"), dtype, constants, capability).asm["ptx"]
    assert code.count("ld.volatile.global") >= 2
    assert "trap" in code


CUT = {"ROWS": 16, "COLUMNS": 16, "RUN": 256, "WARPS": 4}
FEW_ROWS: dict[str, dict[str, Any]] = {
    "few_rows.qkv_kernel": {"H": 25, "D": 64, "PAGE": 16, **CUT},
    "few_rows.up_kernel": {"C": 768, "N": 3072, **CUT},
    "few_rows.update_kernel": {"K": 3072, "C": 768, **CUT, "COLUMNS": 8, "ROWS": 1},
    "few_rows_attention.attend_kernel": ATTEND | {"TILE": 64, "SPLITS": 16},
    "streamed.add_norm_kernel": {"PARTS": 8, "C": 768, "C_POWER": 1024},
    "streamed.product_kernel": {
        "KIND": "qkv", "K": 1600, "N": 4800, "H": 25, "D": 64, "PAGE": 16, "ROWS": 64, "COLUMNS": 32, "RUN": 128,
        "SPLITS": 1, "STAGES": 4,
    },
    "few_rows_head.head_kernel": {"C": 768, "V": 50257, "KEEP": False, **CUT, "COLUMNS": 32, "WARPS": 1},
}  # fmt: skip


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", FEW_ROWS)
def test_a_kernel_that_begins_early(name: str, capability: int) -> None:
    """K10: nothing is written, and the stream is not read, before the wait."""
    early = capability >= 90
    constants = FEW_ROWS[name] | {"EARLY": early}
    code = compiled(kernel_of(name), "bf16", constants, capability).asm["ptx"]
    assert code.count("griddepcontrol.wait") == early
    if early:
        before, after = code.split("griddepcontrol.wait")
        assert not re.search(r"\b(st\.global|atom\.|red\.)", before)
        asked = 2 if name.startswith("streamed") else 5  # weights, or keys and values: ahead of the wait
        assert before.count("ld.global") >= asked
        assert "st.global" in after
        assert "ld.global" in after


def test_the_lab_s_one_kernel() -> None:
    """The interpreter does not know its language, so no other test without a GPU would see what breaks it."""
    from triton.experimental.gluon._runtime import GluonASTSource

    from nanoinfer.labs.one_kernel.kernel import token_kernel
    from nanoinfer.labs.one_kernel.persistent import WAITS

    shape = Shape.of(PRESETS["gpt2"], 132, 1024, 16, 2)
    kinds = {"tables": "*i32", "failed": "*i32"} | dict.fromkeys(("row_sums", "biases", "floats"), "*fp32")
    kinds |= dict.fromkeys(("integers", "counter", "sums_space", "words_space"), "*i64")
    code = compiled(token_kernel, "bf16", {"S": shape}, 90, GluonASTSource, 8, **kinds).asm["ptx"]
    assert code.count("trap;") == len(WAITS) + 2  # the head waits for the stream, and for the best ids
