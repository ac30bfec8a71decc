"""What tests of kernels share: where a kernel can run, memory between guard zones, rows in pages, compilation.

A kernel is compiled on a GPU. Elsewhere Triton's interpreter runs it, in a process of its own: Triton decides at
decoration whether it interprets, so TRITON_INTERPRET must be set before the import.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from nanoinfer.engine.step import Chunk, Layout, Prefill, Prompts
from nanoinfer.model.batch import Batch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
RUNS_HERE = INTERPRETED or DEVICE == "cuda"
here = pytest.mark.skipif(not RUNS_HERE, reason="runs in the interpreter's process, or on a GPU")

SHARED = {75: 65536, 80: 166912, 89: 101376, 90: 232448}  # bytes of shared memory that a program may take


def guarded(*shape: int, dtype: torch.dtype = torch.float32, values: Tensor | float = torch.nan) -> Tensor:
    """A buffer between two zones of NaN as large as itself: the interpreter reads past an end without a word."""
    size = int(torch.Size(shape).numel())
    whole = torch.full((3 * size,), torch.nan, dtype=dtype, device=DEVICE)
    buffer = whole[size : 2 * size].view(shape)
    buffer.copy_(torch.as_tensor(values))
    return buffer


class Case(NamedTuple):
    """Rows of which some tokens are in pages already, in a random order of pages; the new ones are written too."""

    q: Tensor  # (N, H, D), strided as a part of qkv
    k_pool: Tensor
    v_pool: Tensor
    tables: Tensor
    batch: Batch

    @property
    def real(self) -> Tensor:
        """(N,) which tokens are not the dummy row's."""
        return (self.batch.row < len(self.tables) - 1).cpu()

    def slots(self, n: int) -> tuple[Tensor, Tensor]:
        """Where the text of token n stands so far: pages (S,), and places in them (S,)."""
        t, page = torch.arange(int(self.batch.positions[n]) + 1), self.k_pool.shape[2]
        return self.tables[self.batch.row[n]].cpu().long()[t // page], t % page

    def plain(self) -> Tensor:
        """(N, H, D) float64: for each token a softmax over its text so far, gathered slot by slot."""
        out = torch.full(self.q.shape, torch.nan, dtype=torch.float64)
        q, *pools = (x.double().cpu() for x in (self.q, self.k_pool, self.v_pool))
        for n in range(len(q)):
            pages, at = self.slots(n)
            keys, values = (pool[pages, :, at] for pool in pools)  # (S, H, D)
            scores = (keys * q[n]).sum(-1) * q.shape[-1] ** -0.5  # (S, H)
            out[n] = (scores.softmax(0)[..., None] * values).sum(0)
        return out


def case_of(
    rows: Sequence[tuple[int, int]],
    H: int = 2,
    D: int = 32,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
    padding: tuple[int, int] | None = None,
    device: str = DEVICE,
) -> Case:
    """rows: tokens before the step, and in it. padding: rows without tokens, and tokens of the dummy row."""
    generator = torch.Generator().manual_seed(len(rows) + D + page)
    slots = torch.randperm(len(rows), generator=generator).tolist()
    chunks = [Chunk(slot, start, [1] * new) for slot, (start, new) in zip(slots, rows, strict=True)]
    prefill, longest = Prefill(chunks), max(map(sum, rows))
    layout = prefill.layout
    if padding is not None:
        N = layout.tokens + padding[1]
        layout = Layout(len(rows) + padding[0] + 1, N, N, longest)
    batch = Prompts.of_packed(prefill.pack(layout, len(rows)).to(device), layout)
    width = -(-longest // page)
    counts = [-(-(start + new) // page) for start, new in rows]
    order = (torch.randperm(sum(counts) + 2, generator=generator) + 1).tolist()  # never the null page
    k_pool, v_pool = (guarded(sum(counts) + 3, H, page, D, dtype=dtype).to(device) for _ in range(2))
    tables = torch.zeros(len(rows) + 1, width + 1, dtype=torch.int32)
    for slot, (start, new), count in zip(slots, rows, counts, strict=True):
        tables[slot, :count] = torch.tensor([order.pop() for _ in range(count)])
        t = torch.arange(start + new)
        for pool in (k_pool, v_pool):
            values = torch.randn(start + new, H, D, generator=generator).to(device, dtype)
            pool[tables[slot].long()[t // page], :, t % page] = values
    qkv = torch.randn(layout.tokens, 3, H, D, generator=generator).to(device, dtype)
    return Case(qkv[:, 0], k_pool, v_pool, tables.to(device)[:, :width], batch)  # of a wider table, as the cache's


POINTERS = {
    "slots": "*i64", "tables": "*i32", "lengths": "*i64", "parts": "*fp32", "done": "*i32", "row": "*i64",
    "positions": "*i64", "work": "*i32", "ids": "*i32", "tokens": "*i64", "scores": "*fp32", "temperatures": "*fp32",
    "top_ks": "*i64", "top_ps": "*fp32", "seeds": "*i64", "steps": "*i64", "inboxes": "*i64",
}  # fmt: skip
NUMBERS = dict.fromkeys(("B", "M", "N", "K", "most", "half"), "i32") | {"eps": "fp32", "scale": "fp32"}


def compiled(
    kernel: Any, dtype: str, constants: dict[str, Any], capability: int, source: Any = None, warps: int = 4,
    **pointers: str,
) -> Any:  # fmt: skip
    """Compile a kernel to machine code, which needs no GPU; all must fit a program's shared memory."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    known = POINTERS | NUMBERS | pointers | dict.fromkeys(constants, "constexpr")
    kinds = {each: known.get(each, "i32" if each.endswith("stride") else f"*{dtype}") for each in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(kinds.values()) if kind[0] == "*"}
    made, target = (source or ASTSource)(kernel, kinds, constants, aligned), GPUTarget("cuda", capability, 32)
    form = triton.compile(made, target=target, options={"num_warps": warps})
    assert len(form.asm["cubin"]) > 1000
    assert form.metadata.shared <= SHARED[capability]
    return form
