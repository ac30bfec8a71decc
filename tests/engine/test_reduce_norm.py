"""Sums over ranks, added and normalised in one kernel: one rank's launch, in whose inbox the others' terms lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoinfer.model.ops import TorchOps
from tests.engine.kernel_cases import DEVICE, here

pytest.importorskip("triton", reason="there are no wheels of Triton here")

from nanoinfer.kernels import reduce_norm as kernels

pytestmark = here
ROWS = 8


def inboxes(size: int, C: int, dtype: torch.dtype) -> list[Any]:
    """One a rank, all on one device."""
    mine = [torch.full((2, size, ROWS, C), -0.0, dtype=dtype, device=DEVICE) for _ in range(size)]
    lost = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    addresses = torch.tensor([each.data_ptr() for each in (*mine, lost)], device=DEVICE)
    return [
        SimpleNamespace(mine=each, lost=lost, addresses=addresses, rank=rank, size=size, rows=ROWS, processors=2)
        for rank, each in enumerate(mine)
    ]


def given(size: int, N: int, C: int, dtype: torch.dtype, parts: int) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
    """x, each rank's term, weight and bias."""
    draws = torch.Generator().manual_seed(1)

    def new(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=draws).to(DEVICE, kind)

    shape = (parts, N, C) if parts > 1 else (N, C)
    terms = [new(*shape, kind=torch.float32 if parts > 1 else dtype) for _ in range(size)]
    return new(N, C), terms, new(C), new(C)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size, N, C, parts", [(2, 1, 32, 1), (2, 7, 200, 4), (3, 5, 48, 2), (1, 2, 16, 1)])
@pytest.mark.parametrize("half", [0, 1])
def test_sum_and_norm(size: int, N: int, C: int, parts: int, dtype: torch.dtype, half: int) -> None:
    x, terms, weight, bias = given(size, N, C, dtype, parts)
    boxes = inboxes(size, C, dtype)
    rounded = [(term.sum(0) if parts > 1 else term).to(dtype) for term in terms]
    for rank, term in enumerate(rounded[:-1]):  # what the others have sent
        boxes[-1].mine[half, rank, :N] = term
    got = kernels.reduce_norm(x, terms[-1], weight, bias, 1e-5, boxes[-1], half)
    total = sum(term.float() for term in rounded)
    expected = TorchOps().add_norm(x.float(), total, weight.float(), bias.float(), 1e-5)  # type: ignore[arg-type]
    close: dict[str, float] = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 6e-2}
    for one, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(one.float(), wanted, **close)
    exact: dict[str, float] = {"rtol": 0, "atol": 0} if parts == 1 else close
    for box in boxes[:-1]:  # each of the others has this rank's term, in its half alone
        torch.testing.assert_close(box.mine[half, -1, :N], rounded[-1], **exact)
        assert empty(box.mine[1 - half])
        assert empty(box.mine[half, :, N:])
    assert empty(boxes[-1].mine)  # read, and ready for the exchange after the next


def test_a_term_that_is_negative_zero_arrives() -> None:
    """And NaN, infinity and numbers too small to be normal arrive as they are."""
    numbers = torch.tensor([[-0.0, 0.0, float("nan"), float("inf"), -1e-42, 3.0, -0.0, -5.0]], device=DEVICE)
    boxes = inboxes(2, 8, torch.float32)
    boxes[1].mine[0, 0, 0] = 1.0
    x, ones = torch.zeros_like(numbers), torch.ones(8, device=DEVICE)
    total, _ = kernels.reduce_norm(x, numbers, ones, ones, 1e-5, boxes[1], 0)
    torch.testing.assert_close(total, numbers + 1, rtol=0, atol=0, equal_nan=True)
    sent = boxes[0].mine[0, 1, 0]
    assert not empty(sent[0])
    torch.testing.assert_close(sent, numbers[0], rtol=0, atol=0, equal_nan=True)


def test_who_waits_for_a_rank_that_was_lost_goes_on() -> None:
    (box, _), ones = inboxes(2, 8, torch.float32), torch.ones(1, 8, device=DEVICE)
    box.lost.fill_(1)
    kernels.reduce_norm(ones, ones, ones[0], ones[0], 1e-5, box, 0)


def empty(inbox: Tensor) -> bool:
    """Whether nothing has arrived."""
    return bool(((inbox == 0) & inbox.signbit()).all())
