"""How the kernel of exercise 3.6 is launched: by the engine, by the checks, and for which types it is compiled.

In the checks every buffer lies between two guard zones, since the interpreter reads and writes past a buffer without a
word. Zones of numbers hold NaN; zones of a table name block 0, which holds NaN in the checks.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor

# For `triton.compile`: what the launches below hand over, with keys and values in float16.
TYPES = {
    "q": "*fp16", "k_pool": "*fp16", "v_pool": "*fp16", "tables": "*i32", "lengths": "*i64", "out": "*fp16",
    "width": "i32",
}  # fmt: skip


def attend(kernel: Any, q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, lengths: Tensor) -> Tensor:
    """Launch it for queries q (B, H, D), one program a row and head -> (B, H, D)."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _start(kernel, q.contiguous(), k_pool, v_pool, tables.contiguous(), lengths, out)
    return out


def launch(kernel: Any, q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, lengths: Tensor) -> Tensor:
    """The same between guard zones. ValueError where the kernel wrote what is not its own, or left some of it out."""
    if not hasattr(kernel, "fn"):
        raise ValueError("attend_kernel must be a kernel: the line above its `def` reads @triton.jit")
    given = (q, k_pool, v_pool, tables, lengths)
    buffers = [guarded(tensor) for tensor in (*given, torch.full_like(q, torch.nan))]
    _start(kernel, *(own for own, _ in buffers))
    for name, tensor, (own, _) in zip(("q", "k_pool", "v_pool", "tables", "lengths"), given, buffers, strict=False):
        if not torch.equal(own.nan_to_num(99.0), tensor.nan_to_num(99.0)):
            raise ValueError(f"the kernel changed {name}, which it is to read")
    if not all(
        bool(zone.isnan().all() if zone.is_floating_point() else (zone == 0).all()) for _, z in buffers for zone in z
    ):
        raise ValueError("the kernel wrote outside of its buffers")
    return buffers[-1][0]


def fault(form: str, constants: dict[str, int]) -> str:
    """What no run would show: read in the compiler's first form of the kernel, after inlining. Empty where all is well.

    A load of less than a page is slow, and an offset of 32 bits wrong in a large pool alone.
    """
    lines = form.splitlines()
    shapes = [shape for line in lines if "load" in line for shape in re.findall(r"tensor<(\d+(?:x\d+)*)x", line)]
    most = max((math.prod(map(int, shape.split("x"))) for shape in shapes), default=1)
    page = constants["PAGE"] * constants["D"]
    if most < page:
        return f"it loads at most {most} numbers at once, and one head's part of a page has {page}"
    for name in ("k_pool", "v_pool"):
        pointers, offsets = {f"%{name}"}, []
        for line in lines:
            made = re.match(r"\s*(%\w+) = tt\.(addptr|splat|broadcast|expand_dims) (%\w+)\b.* : (.+?)(?: loc|$)", line)
            if made and made[3] in pointers:
                pointers.add(made[1])
                offsets += [made[4]] * (made[2] == "addptr")
        if offsets and not any("i64" in offset for offset in offsets):
            return f"it adds offsets of 32 bits to {name}: widen a block's number before it is multiplied"
    if _multiplied(lines):
        return "it multiplies a block's number in 32 bits: widen it before that"
    return ""


def _multiplied(lines: list[str]) -> bool:
    """Whether what was loaded from the tables is multiplied before it is widened."""
    pointers, numbers = {"%tables"}, set[str]()
    for line in lines:
        made = re.match(r"\s*(%\w+) = ([\w.]+) ([^:]*)", line)
        if not made:
            continue
        name, operation, used = made[1], made[2], set(re.findall(r"%\w+", made[3]))
        if operation == "arith.muli" and used & numbers:
            return True
        if used & pointers:
            (numbers if operation == "tt.load" else pointers).add(name)
        elif used & numbers and operation in ("tt.splat", "tt.broadcast", "tt.expand_dims", "arith.addi"):
            numbers.add(name)
    return False


def guarded(tensor: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """A copy of it with as much before it and behind it; the two zones."""
    size = max(64, tensor.numel())
    fill = torch.nan if tensor.is_floating_point() else 0
    whole = torch.full((2 * size + tensor.numel(),), fill, dtype=tensor.dtype, device=tensor.device)
    own = whole[size : size + tensor.numel()].view(tensor.shape)
    own.copy_(tensor)
    return own, (whole[:size], whole[size + tensor.numel() :])


def _start(
    kernel: Any, q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, lengths: Tensor, out: Tensor
) -> None:
    B, H, D = q.shape
    kernel[(B, H)](q, k_pool, v_pool, tables, lengths, out, tables.shape[1], H=H, D=D, PAGE=k_pool.shape[2])
