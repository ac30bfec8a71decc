"""What chapter 6 is about, measured: a matrix over rows, a graph's node, an exchange, and one row's token by each way.

No time of a token is printed before the tokens are within rounding of float32's choice, but for the way that waits for
nobody, which is wrong on purpose: it says what of the time is not waiting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nanobench.core.machine import copy_bandwidth, stamp
from nanobench.micro.one_kernel_records import NEW, OneKernelReport
from nanoinfer.devices import choose_device
from nanoinfer.model.config import PRESETS
from nanoinfer.model.weights import random_model


def measure(device_name: str | None, path: Path, name: str, rows: tuple[int, ...], texts: bool) -> OneKernelReport:
    """Measure all parts, or whole texts alone; print them, write `path`. ValueError without a CUDA GPU."""
    device = choose_device(device_name)
    if device.type != "cuda":
        raise ValueError("the one-kernel benchmark needs a CUDA GPU: its kernels wait for each other")
    from nanobench.micro import one_kernel_parts as parts

    model = random_model(PRESETS[name], 1, device=device, dtype=torch.bfloat16)
    with torch.inference_mode():
        report = OneKernelReport(
            model=f"random:{name}", new_tokens=NEW, copy_bytes_per_s=copy_bandwidth(device), **stamp(device)
        )
        if not texts:
            found: dict[str, Any] = {"matrix": parts.matrix(model), "nodes": parts.nodes(device)}
            found |= {"exchanges": parts.exchanges(device), "steps": parts.steps(model)}
            report = report.model_copy(update={part: tuple(each) for part, each in found.items()})
            report.save(path)
    generated, timed = parts.generated(model, rows)
    report = report.model_copy(update={"generated": tuple(generated), "timed": timed})
    report.save(path)
    return report
