"""The fused kernels against PyTorch's own: in the interpreter's process on a CPU, compiled on a GPU."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from nanoinfer.model.ops import TorchOps
from tests.conftest import passed_in_the_interpreter

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
RUNS_HERE = INTERPRETED or DEVICE == "cuda"
here = pytest.mark.skipif(not RUNS_HERE, reason="runs in the interpreter's process, or on a GPU")

triton = pytest.importorskip("triton", reason="there are no wheels of Triton here")

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.skipif(RUNS_HERE, reason="this is that process")
@pytest.mark.long
def test_in_the_interpreter() -> None:
    assert passed_in_the_interpreter(__file__) >= 20


def tensor(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Random data between two zones of NaN: what is read past an end is seen in the result."""
    size = int(torch.Size(shape).numel())
    whole = torch.full((size + 512,), float("nan"), dtype=dtype, device=DEVICE)
    data = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale
    whole[256 : 256 + size] = data.to(DEVICE, dtype)
    return whole[256 : 256 + size].view(shape)


def fused() -> TorchOps:
    from nanoinfer.kernels.fused import FusedOps

    return FusedOps()


@here
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("N, C", [(1, 48), (5, 160), (3, 768)])
def test_add_norm(N: int, C: int, dtype: torch.dtype) -> None:
    x, update = tensor(N, C, dtype=dtype), tensor(N, C, dtype=dtype, seed=1)
    weight, bias = tensor(C, dtype=dtype, seed=2), tensor(C, dtype=dtype, seed=3)
    before = x.clone()
    got = fused().add_norm(x, update, weight, bias, 1e-5)
    expected = TorchOps().add_norm(x, update, weight, bias, 1e-5)
    assert torch.equal(x, before)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@here
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("M, K, N", [(1, 48, 144), (3, 160, 480), (17, 640, 160), (64, 192, 100)])
def test_linear(M: int, K: int, N: int, dtype: torch.dtype) -> None:
    """Shapes that fill no tile, and that are cut along K into one part or several."""
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as integers")
    x, weight = tensor(M, K, dtype=dtype), tensor(K, N, dtype=dtype, seed=1, scale=K**-0.5)
    bias, ops = tensor(N, dtype=dtype, seed=2), fused()
    expected = TorchOps().linear_gelu(x, weight, bias)
    torch.testing.assert_close(ops.linear_gelu(x, weight, bias), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    update = ops.linear_update(x, weight, bias)
    parts = update.sum(0) if update.dim() == 3 else update
    expected = TorchOps().linear_update(x, weight, bias)
    torch.testing.assert_close(parts.to(dtype), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@here
def test_an_update_in_parts_is_added_up() -> None:
    """What `linear_update` gives, `add_norm` takes: together they are the plain operations."""
    x, y, weight, bias = tensor(3, 48), tensor(3, 192, seed=1), tensor(192, 48, seed=2, scale=0.1), tensor(48, seed=3)
    norm, ops, plain = (tensor(48, seed=4), tensor(48, seed=5), 1e-5), fused(), TorchOps()
    update = ops.linear_update(y, weight, bias)
    assert update.shape == (8, 3, 48)
    expected = plain.add_norm(x, plain.linear_update(y, weight, bias), *norm)
    for got, wanted in zip(ops.add_norm(x, update, *norm), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@here
def test_many_rows_are_pytorchs_own() -> None:
    x, weight, bias = tensor(65, 32), tensor(32, 64, seed=1), tensor(64, seed=2)
    assert torch.equal(fused().linear_gelu(x, weight, bias), TorchOps().linear_gelu(x, weight, bias))
    assert torch.equal(fused().linear_update(x, weight, bias), TorchOps().linear_update(x, weight, bias))


@here
def test_the_comparison_can_fail() -> None:
    """One input dropped, and a bias forgotten, are far outside the tolerance."""
    x, weight, bias = tensor(2, 96), tensor(96, 64, seed=1, scale=0.1), tensor(64, seed=2)
    good = fused().linear_update(x, weight, bias)
    shorter = x.clone()
    shorter[:, -1] = 0
    assert float((fused().linear_update(shorter, weight, bias) - good).abs().max()) > 1e-3
    assert float((fused().linear_update(x, weight, torch.zeros_like(bias)) - good).abs().max()) > 1e-3


SIGNATURES = {
    "_add_norm_kernel": (
        {"x": "*fp16", "update": "*fp16", "weight": "*fp16", "bias": "*fp16", "x_out": "*fp16", "h_out": "*fp16",
         "eps": "fp32", "N": "i32"},
        {"PARTS": 4, "C": 1600, "C_POWER": 2048},
    ),
    "_linear_kernel": (
        {"x": "*fp16", "weight": "*fp16", "bias": "*fp16", "out": "*fp16", "M": "i32", "N": "i32",
         "K": "i32"},
        {"M_POWER": 64, "COLUMNS": 32, "STEP": 64, "SPLITS": 1, "GELU": True, "STAGES": 5},
    ),
    "_linear_kernel wide": (
        {"x": "*fp16", "weight": "*fp16", "bias": "*fp16", "out": "*fp16", "M": "i32", "N": "i32", "K": "i32"},
        {"M_POWER": 32, "COLUMNS": 32, "STEP": 128, "SPLITS": 1, "GELU": True, "STAGES": 5},
    ),
}  # fmt: skip


@pytest.mark.skipif(INTERPRETED, reason="interpreted kernels cannot be compiled")
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize("name", SIGNATURES)
def test_compiles_without_a_gpu(name: str, capability: int) -> None:
    """Down to machine code, and into no more shared memory than the smallest GPU of that kind has."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from nanoinfer.kernels import fused

    pointers, constants = SIGNATURES[name]
    kernel, signature = getattr(fused, name.split(maxsplit=1)[0]), pointers | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert len(compiled.asm["cubin"]) > 1000
    assert compiled.metadata.shared <= {75: 64, 80: 100, 90: 227}[capability] * 1024
