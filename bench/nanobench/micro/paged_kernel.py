"""The paged kernel alone, against SDPA on a dense cache and FlashInfer's: cold L2, inside a graph.

Calls over many copies of the keys and values stand in one captured graph. Each variant is a function of the number of
a copy. There are enough copies to fill the L2 several times, and they are attended to in turn, so that each call finds
its data in memory. To add a variant, write a function that makes it and name it in `attention_variants`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from nanobench.core.case_runner import first_line
from nanobench.core.machine import copy_bandwidth, cuda, stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanobench.core.timing import call_seconds
from nanobench.options import Gpu, Out
from nanoinfer.cache.paged import choose_splits
from nanoinfer.kernels.available import kernels_for

REPEATS = 7
BATCHES, CONTEXTS = (1, 8, 64, 256), (128, 512, 1024)
HEADS, HEAD_SIZE = 12, 64  # gpt2's
COLD_BYTES = 400e6  # several times the L2 of any GPU of today
MAX_COPIES = 64
PAGE = 16  # the engine's own block size; others beside it
WORKSPACE = 128 * 2**20  # bytes, as FlashInfer's own examples have it

Call = Callable[[int], Tensor]


class KernelTime(Record):
    """Seconds of one call of attention for one layer."""

    batch: int
    context: int
    arm: str  # the variant: sdpa, sdpa with a mask, paged with block size and splits, or a peer's
    chosen: bool  # whether it is what the engine would run
    seconds: Spread
    bytes_share: float  # of the time that keys and values alone take at the copy bandwidth


class KernelReport(ResultsFile):
    """One run of `python -m bench kernels`: gpt2's heads, random keys and values in bfloat16."""

    kind: Literal["kernels"] = "kernels"
    copy_bytes_per_s: float
    times: tuple[KernelTime, ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)  # variants that could not run, with the reason


def measure(device: Gpu = None, out: Out = Path("my-bench/kernels.json")) -> None:
    """Measure every case, print a table, write it. ValueError without a CUDA GPU."""
    where = cuda(device, "the kernel benchmark needs a CUDA GPU: times in the interpreter mean nothing")
    bandwidth, left_out = copy_bandwidth(where), dict[str, str]()
    with torch.inference_mode():
        times = (
            time
            for batch, context in itertools.product(BATCHES, CONTEXTS)
            for time in _case(batch, context, bandwidth, where, left_out)
        )
        report = KernelReport(copy_bytes_per_s=bandwidth, **stamp(where)).fill(out, times=times)
    print("left out:", report.add(out, left_out=left_out).left_out)


def _case(
    batch: int, context: int, bandwidth: float, device: torch.device, left_out: dict[str, str]
) -> Iterator[KernelTime]:
    """All variants at one batch and context; why others are none goes to `left_out`."""
    q, dense = contents(batch, context, device)
    variants, chosen = attention_variants(q, dense, left_out)
    size = 2 * batch * context * HEADS * HEAD_SIZE * q.dtype.itemsize  # bytes of keys and values
    for arm, spread in call_seconds(variants, len(dense), REPEATS, device).items():
        share = size / bandwidth / spread.median
        yield KernelTime(batch=batch, context=context, arm=arm, chosen=arm == chosen, seconds=spread, bytes_share=share)


@dataclass(frozen=True)
class Pages:
    """The contents of dense caches in pages, in a random order: pools (copies, 2, pages, H, page, D)."""

    pools: Tensor
    tables: Tensor  # (B, width) int32
    lengths: Tensor  # (B,) int64
    page: int

    @classmethod
    def of(cls, dense: Tensor, page: int) -> Pages:
        """Pages of the dense caches (copies, 2, B, H, S, D)."""
        copies, _, B, H, S, D = dense.shape
        pages = B * S // page
        pools = dense.view(copies, 2, B, H, S // page, page, D).transpose(3, 4).reshape(copies, 2, pages, H, page, D)
        order = torch.randperm(pages, device=dense.device)
        where = torch.empty_like(order).scatter_(0, order, torch.arange(pages, device=order.device))
        # Page i of the pool is page order[i] of the sequences.
        tables = where.view(B, -1).int()
        return cls(pools[:, :, order].contiguous(), tables, torch.full((B,), S, device=dense.device), page)


def contents(batch: int, context: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Queries (B, H, 1, D) and dense caches (copies, 2, B, H, S, D), bfloat16, random."""
    copies = max(2, min(MAX_COPIES, int(COLD_BYTES / (2 * batch * context * HEADS * HEAD_SIZE * 2)) + 1))
    kind: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    q = torch.randn(batch, HEADS, 1, HEAD_SIZE, **kind)
    return q, torch.randn(copies, 2, batch, HEADS, context, HEAD_SIZE, **kind)


def attention_variants(q: Tensor, dense: Tensor, absent: dict[str, str]) -> tuple[dict[str, Call], str]:
    """All variants over these contents, each checked against SDPA, and the name of the one that the engine runs.

    Why one cannot run here goes to `absent`.
    """
    batch, context = dense.shape[2], dense.shape[4]
    mask = torch.zeros(batch, 1, 1, context, device=q.device, dtype=q.dtype)
    variants = {"sdpa": _sdpa(q, dense, None), "sdpa, mask": _sdpa(q, dense, mask)}
    chosen = choose_splits(batch, HEADS, context)
    for page in (PAGE, 64):
        pages = Pages.of(dense, page)
        for splits in sorted({1, chosen // 2 or 1, chosen, min(16, chosen * 2)}):
            variants[f"paged, block {page}, splits {splits}"] = _paged(q[:, :, 0], pages, splits)
    try:
        variants[f"flashinfer, block {PAGE}"] = _flashinfer(q[:, :, 0], Pages.of(dense, PAGE))
    except Exception as error:  # not installed, or its own compiler fails: the others go on
        absent["flashinfer"] = first_line(error) or type(error).__name__
    expected = F.scaled_dot_product_attention(q.float(), dense[0, 0].float(), dense[0, 1].float())
    for name, call in variants.items():
        torch.testing.assert_close(call(0).view_as(q).float(), expected, rtol=2e-2, atol=2e-2, msg=name)
    return variants, f"paged, block {PAGE}, splits {chosen}"


def _sdpa(q: Tensor, dense: Tensor, mask: Tensor | None) -> Call:
    return lambda i: F.scaled_dot_product_attention(q, dense[i, 0], dense[i, 1], attn_mask=mask)


def _paged(q: Tensor, pages: Pages, splits: int) -> Call:
    """The book's own kernel, q (B, H, D)."""
    done = torch.zeros(q.shape[0] * q.shape[1], dtype=torch.int32, device=q.device)
    pools, tables, lengths = pages.pools, pages.tables, pages.lengths
    kernels = kernels_for(q.device)

    def call(i: int) -> Tensor:
        out: Tensor = kernels.attend_pages(q, pools[i, 0], pools[i, 1], tables, lengths, done, splits)
        return out

    return call


def _flashinfer(q: Tensor, pages: Pages) -> Call:
    """FlashInfer's paged decode, planned once as an engine plans each step, in a form that can be captured in a graph.

    ValueError where it is not installed.
    """
    if find_spec("flashinfer") is None:
        raise ValueError("flashinfer is not installed: pip install 'nanoinfer[flashinfer]'")
    import flashinfer

    batch, width = pages.tables.shape
    kind: dict[str, Any] = {"device": q.device, "dtype": torch.int32}
    indptr = torch.arange(0, batch * width + 1, width, **kind)  # (B + 1,) where each row's pages begin
    indices, last = pages.tables.reshape(-1), torch.full((batch,), pages.page, **kind)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(WORKSPACE, dtype=torch.uint8, device=q.device),
        "HND",  # a head's page in one piece, as ours
        use_cuda_graph=True,
        paged_kv_indptr_buffer=torch.empty_like(indptr),
        paged_kv_indices_buffer=torch.empty_like(indices),
        paged_kv_last_page_len_buffer=torch.empty_like(last),
    )
    wrapper.plan(
        indptr, indices, last, q.shape[1], q.shape[1], q.shape[2], pages.page, q_data_type=q.dtype,
        kv_data_type=q.dtype,
    )  # fmt: skip
    return lambda i: wrapper.run(q, (pages.pools[i, 0], pages.pools[i, 1]))
