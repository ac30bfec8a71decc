"""The paged kernel alone: one layer of gpt2's heads at decode, cold L2, inside a graph, against SDPA on a dense cache.

As many copies of keys and values as fill several times the L2 are attended to in turn, in one captured graph, so that
each call finds its data in memory and no time is lost between launches. SDPA reads a dense cache of the same contents.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer import paged_kernels
from nanoinfer.devices import choose_device
from nanoinfer.paged import choose_splits

from .machine import copy_bandwidth, describe
from .records import Machine, Record, Spread

HEADS, HEAD_SIZE = 12, 64
COLD_BYTES = 400e6  # several times the L2 of any GPU of today
MAX_COPIES = 64
REPEATS = 7
CASES = ((1, 128), (1, 1024), (8, 1024), (64, 128), (64, 512), (64, 1024), (256, 1024))


class KernelTime(Record):
    """Seconds of one call of attention for one layer."""

    batch: int
    context: int
    arm: str  # sdpa, sdpa with a mask, or paged with block size and splits
    chosen: bool  # whether it is what the engine would run
    seconds: Spread
    bytes_share: float  # of the time that keys and values alone take at the copy bandwidth


class KernelReport(Record):
    """One run of `python -m bench kernels`."""

    machine: Machine
    copy_bytes_per_s: float
    times: tuple[KernelTime, ...]


def measure(device_name: str | None, path: Path) -> None:
    """Measure every case, print a table, write it to `path`."""
    device = choose_device(device_name)
    if device.type != "cuda":
        raise ValueError("the kernel benchmark needs a CUDA GPU: in the interpreter a time says nothing")
    bandwidth = copy_bandwidth(device)
    times: list[KernelTime] = []
    with torch.inference_mode():
        for batch, context in CASES:
            times += _case(batch, context, bandwidth, device)
    report = KernelReport(machine=describe(device), copy_bytes_per_s=bandwidth, times=tuple(times))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _case(batch: int, context: int, bandwidth: float, device: torch.device) -> list[KernelTime]:
    """All arms at one batch and context, taking turns."""
    size = 2 * batch * context * HEADS * HEAD_SIZE * 2  # bytes of keys and values
    copies = max(2, min(MAX_COPIES, int(COLD_BYTES / size) + 1))
    dense = torch.randn(copies, 2, batch, HEADS, context, HEAD_SIZE, device=device, dtype=torch.bfloat16)
    q = torch.randn(batch, HEADS, 1, HEAD_SIZE, device=device, dtype=torch.bfloat16)
    mask = torch.zeros(batch, 1, 1, context, device=device, dtype=torch.bfloat16)

    def sdpa(i: int, attn_mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, dense[i, 0], dense[i, 1], attn_mask=attn_mask)

    arms: dict[str, tuple[bool, Callable[[int], Tensor]]] = {
        "sdpa": (False, sdpa),
        "sdpa, mask": (False, lambda i: sdpa(i, mask)),
    }
    splits = choose_splits(batch, HEADS, context)
    for page in (16, 64):
        for n in sorted({1, splits // 2 or 1, splits, min(16, splits * 2)}):
            chosen = page == 16 and n == splits
            arms[f"paged, block {page}, splits {n}"] = (chosen, _paged(dense, q[:, :, 0], page, n))
    graphs = {name: _captured(call, copies) for name, (_, call) in arms.items()}
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(REPEATS):
        for name, graph in graphs.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(4):
                graph.replay()
            torch.cuda.synchronize()
            samples[name].append((time.perf_counter() - start) / (4 * copies))
    found = []
    for name, (chosen, _) in arms.items():
        spread = Spread.of(samples[name])
        share = size / bandwidth / spread.median
        found.append(
            KernelTime(batch=batch, context=context, arm=name, chosen=chosen, seconds=spread, bytes_share=share)
        )
        star = "*" if chosen else " "
        print(
            f"B={batch:<4} context {context:<5} {name:28}{star} {spread.median * 1e6:7.1f} us  {share:6.1%} of the copy"
        )
    return found


def _paged(dense: Tensor, q: Tensor, page: int, splits: int) -> Callable[[int], Tensor]:
    """The kernel over pages of the same contents, in a random order, after a check against SDPA."""
    copies, _, B, H, S, D = dense.shape
    pages = B * S // page
    pools = dense.view(copies, 2, B, H, S // page, page, D).transpose(3, 4).reshape(copies, 2, pages, H, page, D)
    order = torch.randperm(pages, device=dense.device)
    pools = pools[:, :, order].contiguous()  # page i of the pool is page order[i] of the texts
    tables = torch.empty_like(order).scatter_(0, order, torch.arange(pages, device=order.device)).view(B, -1).int()
    lengths = torch.full((B,), S, device=dense.device)

    def call(i: int) -> Tensor:
        return paged_kernels.attend_pages(q, pools[i, 0], pools[i, 1], tables, lengths, splits)

    expected = F.scaled_dot_product_attention(q[:, :, None].float(), dense[0, 0].float(), dense[0, 1].float())[:, :, 0]
    torch.testing.assert_close(call(0).float(), expected, rtol=2e-2, atol=2e-2)
    return call


def _captured(call: Callable[[int], Tensor], copies: int) -> torch.cuda.CUDAGraph:
    """One graph that attends to every copy once."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(copies):
            call(i)
    graph.replay()
    return graph
