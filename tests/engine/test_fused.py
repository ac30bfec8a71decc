"""The fused kernels against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nanoinfer.model.ops import TorchOps
from tests.engine.kernel_cases import INTERPRETED, guarded, here

pytest.importorskip("triton", reason="there are no wheels of Triton here")

from nanoinfer.kernels.fused import FusedOps

pytestmark = here
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
FUSED, PLAIN = FusedOps(), TorchOps()


def tensor(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 1.0) -> Tensor:
    return guarded(
        *shape, dtype=dtype, values=torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    )


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("N, C", [(1, 48), (5, 160), (3, 768)])
def test_add_norm(N: int, C: int, dtype: torch.dtype) -> None:
    x, update = tensor(N, C, dtype=dtype), tensor(N, C, dtype=dtype, seed=1)
    weight, bias = tensor(C, dtype=dtype, seed=2), tensor(C, dtype=dtype, seed=3)
    before = x.clone()
    got = FUSED.add_norm(x, update, weight, bias, 1e-5)
    expected = PLAIN.add_norm(x, update, weight, bias, 1e-5)
    assert torch.equal(x, before)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("M, K, N", [(1, 48, 144), (3, 160, 480), (17, 640, 160), (64, 192, 100)])
def test_linear(M: int, K: int, N: int, dtype: torch.dtype) -> None:
    """Shapes that fill no tile, and that are cut along K into one part or several."""
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as integers")
    x, weight = tensor(M, K, dtype=dtype), tensor(K, N, dtype=dtype, seed=1, scale=K**-0.5)
    bias = tensor(N, dtype=dtype, seed=2)
    expected = PLAIN.linear_gelu(x, weight, bias)
    torch.testing.assert_close(
        FUSED.linear_gelu(x, weight, bias), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
    update = FUSED.linear_update(x, weight, bias)
    parts = update.sum(0) if update.dim() == 3 else update
    expected = PLAIN.linear_update(x, weight, bias)
    torch.testing.assert_close(parts.to(dtype), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_an_update_in_parts_is_added_up() -> None:
    """What `linear_update` gives, `add_norm` takes: together they are the plain operations."""
    x, y, weight, bias = tensor(3, 48), tensor(3, 192, seed=1), tensor(192, 48, seed=2, scale=0.1), tensor(48, seed=3)
    norm = tensor(48, seed=4), tensor(48, seed=5), 1e-5
    update = FUSED.linear_update(y, weight, bias)
    assert update.shape == (8, 3, 48)
    expected = PLAIN.add_norm(x, PLAIN.linear_update(y, weight, bias), *norm)
    for got, wanted in zip(FUSED.add_norm(x, update, *norm), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_many_rows_are_pytorchs_own() -> None:
    x, weight, bias = tensor(65, 32), tensor(32, 64, seed=1), tensor(64, seed=2)
    assert torch.equal(FUSED.linear_gelu(x, weight, bias), PLAIN.linear_gelu(x, weight, bias))
    assert torch.equal(FUSED.linear_update(x, weight, bias), PLAIN.linear_update(x, weight, bias))


def test_the_comparison_can_fail() -> None:
    """One input dropped, and a bias forgotten, are far outside the tolerance."""
    x, weight, bias = tensor(2, 96), tensor(96, 64, seed=1, scale=0.1), tensor(64, seed=2)
    good = FUSED.linear_update(x, weight, bias)
    shorter = x.clone()
    shorter[:, -1] = 0
    assert float((FUSED.linear_update(shorter, weight, bias) - good).abs().max()) > 1e-3
    assert float((FUSED.linear_update(x, weight, torch.zeros_like(bias)) - good).abs().max()) > 1e-3
