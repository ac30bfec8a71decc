"""Chapter 6: a matrix over rows, a graph's node, three kinds of exchange, and a token by each way.

No time of a token is printed before the tokens are within rounding of float32's choice, but for the way that waits for
nobody, which is wrong on purpose: it says what of the time is not waiting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from nanobench.core.machine import copy_bandwidth, cuda, stamp
from nanobench.micro.one_kernel_records import NEW, OneKernelReport
from nanobench.options import Gpu, Out
from nanoinfer.model.config import PRESETS
from nanoinfer.model.weights import random_model


def measure(
    device: Gpu = None,
    out: Out = Path("my-bench/one-kernel.json"),
    model: Annotated[str, typer.Option(help="gpt2, with random weights, or another size's name.")] = "gpt2",
    rows: Annotated[list[int] | None, typer.Option(min=1, help="At once, of whole texts; repeatable.")] = None,
    texts: Annotated[bool, typer.Option("--texts", help="Whole texts alone.")] = False,
) -> None:
    """Measure all parts, or whole texts alone; print them, write them. ValueError without a CUDA GPU."""
    where = cuda(device, "the one-kernel benchmark needs a CUDA GPU: its kernels wait for each other")
    from nanobench.micro import one_kernel_parts as parts

    weights = random_model(PRESETS[model], 1, device=where, dtype=torch.bfloat16)
    with torch.inference_mode():
        report = OneKernelReport(
            model=f"random:{model}", new_tokens=NEW, copy_bytes_per_s=copy_bandwidth(where), **stamp(where)
        )
        if not texts:
            report = report.fill(
                out, matrix=parts.matrix(weights), nodes=parts.nodes(where), exchanges=parts.exchanges(where),
                steps=parts.steps(weights),
            )  # fmt: skip
    timed: dict[str, dict[str, float]] = {}
    report = report.fill(out, generated=parts.generated(weights, rows or (1, 2, 4, 8, 16, 64, 256), timed))
    report.add(out, timed=timed)
