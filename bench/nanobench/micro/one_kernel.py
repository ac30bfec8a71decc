"""What chapter 6 is about, measured: a matrix over rows, a graph's node, an exchange, and one row's token by each way.

No time of a token is printed before the tokens are within rounding of float32's choice, but for the way that waits for
nobody, which is wrong on purpose: it says what of the time is not waiting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from nanobench.core.machine import copy_bandwidth, stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanoinfer.devices import choose_device
from nanoinfer.model.config import PRESETS
from nanoinfer.model.weights import random_model

NEW = 512  # tokens of a text


class MatrixTime(Record):
    """A product of so many rows with a matrix that no cache holds."""

    matrix: str
    weight_bytes: int
    rows: int
    seconds: Spread


class NodeTime(Record):
    """A kernel that does nothing, in a graph of many: `early` ones begin before the one ahead has ended."""

    early: bool
    seconds: Spread


class Exchange(Record):
    """Every program gives a number away and gets the sum of all."""

    kind: str
    programs: int
    seconds: Spread


class StepTime(Record):
    """One row's token. short: of the largest logit, how far the worst choice is below float32's; None where wrong."""

    arm: str
    sampled: bool
    seconds: Spread
    same: int | None
    short: float | None


class Generated(Record):
    """Texts of an engine, which takes turns with the others. prompt_tokens above 1: few tokens behind a long prompt.

    tokens_per_s: of whole texts; behind a long prompt by the median gap between a row's tokens.
    """

    engine: str
    rows: int
    prompt_tokens: int
    sampled: bool
    tokens_per_s: Spread


class OneKernelReport(ResultsFile):
    """One run of `python -m bench one-kernel`."""

    kind: Literal["one-kernel"] = "one-kernel"
    model: str
    new_tokens: int
    copy_bytes_per_s: float
    matrix: tuple[MatrixTime, ...] = ()
    nodes: tuple[NodeTime, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    steps: tuple[StepTime, ...] = ()
    generated: tuple[Generated, ...] = ()
    timed: dict[str, dict[str, float]] = Field(default_factory=dict)  # as the engine's own `GraphStats.timed`


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
