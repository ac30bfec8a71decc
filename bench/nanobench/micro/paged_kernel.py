"""The paged kernel alone: one layer of gpt2's heads at decode, cold L2, inside a graph, against SDPA on a dense cache.

Calls over many copies of the keys and values stand in one captured graph. The variants take turns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field

from nanobench.core.machine import copy_bandwidth, cuda, stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanobench.core.timing import call_seconds
from nanobench.micro.attention_variants import HEAD_SIZE, HEADS, attention_variants, contents
from nanobench.options import Gpu, Out

REPEATS = 7
BATCHES, CONTEXTS = (1, 8, 64, 256), (128, 512, 1024)


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
    times: tuple[KernelTime, ...]
    left_out: dict[str, str] = Field(default_factory=dict)  # variants that could not run, with the reason


def measure(device: Gpu = None, out: Out = Path("my-bench/kernels.json")) -> None:
    """Measure every case, print a table, write it. ValueError without a CUDA GPU."""
    where = cuda(device, "the kernel benchmark needs a CUDA GPU: times in the interpreter mean nothing")
    bandwidth, left_out = copy_bandwidth(where), dict[str, str]()
    with torch.inference_mode():
        times = [
            time
            for batch, context in itertools.product(BATCHES, CONTEXTS)
            for time in _case(batch, context, bandwidth, where, left_out)
        ]
    for name, reason in left_out.items():
        print(f"{name} left out: {reason}")
    KernelReport(copy_bytes_per_s=bandwidth, times=tuple(times), left_out=left_out, **stamp(where)).save(out)


def _case(
    batch: int, context: int, bandwidth: float, device: torch.device, left_out: dict[str, str]
) -> Iterator[KernelTime]:
    """All variants at one batch and context; why others are none goes to `left_out`."""
    q, dense = contents(batch, context, device)
    variants, absent = attention_variants(q, dense)
    left_out |= absent
    size = 2 * batch * context * HEADS * HEAD_SIZE * q.dtype.itemsize  # bytes of keys and values
    calls = {variant: variant.call for variant in variants}
    for variant, spread in call_seconds(calls, len(dense), REPEATS, device).items():
        share = size / bandwidth / spread.median
        star, case = "*" if variant.chosen else " ", f"B={batch:<4} context {context:<5}"
        print(f"{case} {variant.name:28}{star} {spread.median * 1e6:7.1f} us  {share:6.1%} of the copy")
        yield KernelTime(
            batch=batch, context=context, arm=variant.name, chosen=variant.chosen, seconds=spread, bytes_share=share
        )
