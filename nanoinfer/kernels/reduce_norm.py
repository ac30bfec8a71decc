"""An all-reduce, the update of the residual stream and LayerNorm in one kernel. Chapter 8.

Each rank stores its term of a sum into the others' inboxes, and reads theirs from its own as soon as they are there.
What has not arrived is -0.0, which nobody sends: there is no flag, no fence and no barrier. Idea: the one-shot
"Lamport" all-reduce of NVIDIA/TensorRT-LLM. Every rank reads the terms of all, so it is for a step's small tensors.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanoinfer.kernels.fused import keep_and_norm

PROGRAMS = 2  # a multiprocessor at most: all of them are resident, since each waits for what others send
POLLS = 1 << 29  # of one wait at most: some minutes


@triton.jit
def _wait(pointers, used, lost, EMPTY: tl.constexpr, POLLS: tl.constexpr, BETWEEN_LOOKS: tl.constexpr = 4096):
    """Until all numbers have arrived. What was read is dropped: the compiler may have read it more than once.

    lost: where the host says that some never will. It lies beyond PCIe, so it is looked at seldom.
    """
    late, looks = 1, 0
    while (late > 0) & (looks < POLLS // BETWEEN_LOOKS):
        polls = 0
        while (late > 0) & (polls < BETWEEN_LOOKS):
            bits = tl.load(pointers, mask=used, other=0, volatile=True)
            late = tl.max((bits == EMPTY).to(tl.int32), 0)
            polls += 1
        if late > 0:  # noqa: SIM102 - `and` would look in any case
            if tl.load(lost, volatile=True) != 0:
                late = 0
        looks += 1
    if late > 0:
        tl.inline_asm_elementwise("trap; mov.u32 $0, 0;", "=r,r", [late], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _term(update, row, c, N, DTYPE: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr):
    """A row of what this rank adds, rounded as it is sent."""
    term = tl.zeros(c.shape, tl.float32)
    for part in tl.static_range(PARTS):
        term += tl.load(update + (part * N + row) * C + c, mask=c < C, other=0.0).to(tl.float32)
    return term.to(DTYPE)


@triton.jit(do_not_specialize=["half", "N"])
def _reduce_norm_kernel(
    x, update, weight, bias, x_out, h_out, inboxes, half, eps, N, RANK: tl.constexpr, SIZE: tl.constexpr,
    ROWS: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr, C_POWER: tl.constexpr, POLLS: tl.constexpr,
):  # fmt: skip
    """Program p has rows p, p + programs, ... half: which half of the inboxes (2, SIZE, ROWS, C) this exchange uses.

    A half is used anew after the next exchange, in which each rank waits for all others. So they have begun that one,
    and are done with this, before anybody writes here again.
    """
    DTYPE: tl.constexpr = x.dtype.element_ty
    BITS: tl.constexpr = tl.int32 if x.dtype.element_ty.primitive_bitwidth == 32 else tl.int16
    EMPTY: tl.constexpr = -(1 << (BITS.primitive_bitwidth - 1))  # the bits of -0.0
    c = tl.arange(0, C_POWER)
    real = c < C
    for row in range(tl.program_id(0), N, tl.num_programs(0)):
        bits = _term(update, row, c, N, DTYPE, PARTS, C).to(BITS, bitcast=True)
        bits = tl.where(bits == EMPTY, 0, bits)
        for peer in tl.static_range(SIZE):
            if peer != RANK:
                inbox = tl.load(inboxes + peer).to(tl.pointer_type(BITS))
                tl.store(inbox + ((half * SIZE + RANK) * ROWS + row) * C + c, bits, mask=real)
    mine = tl.load(inboxes + RANK).to(tl.pointer_type(BITS))
    lost = tl.load(inboxes + SIZE).to(tl.pointer_type(tl.int32))
    norm_weight = tl.load(weight + c, mask=real, other=0.0)  # before the wait, as all that is here already
    norm_bias = tl.load(bias + c, mask=real, other=0.0)
    for row in range(tl.program_id(0), N, tl.num_programs(0)):
        total = tl.load(x + row * C + c, mask=real, other=0.0).to(tl.float32)
        own = _term(update, row, c, N, DTYPE, PARTS, C)
        update_sum = tl.zeros((C_POWER,), tl.float32)
        for source in tl.static_range(SIZE):  # in order, so that all ranks have the same bits
            if source == RANK:
                update_sum += own.to(tl.float32)
            else:
                arriving = mine + ((half * SIZE + source) * ROWS + row) * C + c
                _wait(arriving, real, lost, EMPTY, POLLS)
                term = tl.load(arriving, mask=real, other=0, volatile=True).to(DTYPE, bitcast=True)
                update_sum += term.to(tl.float32)
                tl.debug_barrier()  # all threads have read it
                tl.store(arriving, tl.full((C_POWER,), EMPTY, BITS), mask=real)
        keep_and_norm(total + update_sum, x_out, h_out, norm_weight, norm_bias, row, c, eps, C)


def reduce_norm(
    x: Tensor, term: Tensor, weight: Tensor, bias: Tensor, eps: float, inbox: Any, half: int
) -> tuple[Tensor, Tensor]:
    """x (N, C) plus the sum of all ranks' terms, and LayerNorm of that. All ranks make the same calls in one order.

    term: this rank's, (N, C), or (parts, N, C) whose sum it is. inbox: an `Inbox` of N rows or more. half: 0 and 1 by
    turns.
    """
    N, C = x.shape
    x_out, h_out = torch.empty_like(x), torch.empty_like(x)
    warps = 4 if C <= 2048 else 8
    power = max(triton.next_power_of_2(C), 32 * warps)  # with fewer numbers than threads, threads hold copies
    _reduce_norm_kernel[(min(N, PROGRAMS * inbox.processors),)](
        x, term, weight, bias, x_out, h_out, inbox.addresses, half, eps, N, RANK=inbox.rank, SIZE=inbox.size,
        ROWS=inbox.rows, PARTS=len(term) if term.dim() == 3 else 1, C=C, C_POWER=power, POLLS=POLLS, num_warps=warps,
    )  # fmt: skip
    return x_out, h_out
