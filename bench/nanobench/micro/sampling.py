"""Choosing the next tokens, alone: the book's kernel against sorting, torch.topk and rejection, inside a graph.

Logits are bfloat16, in GPT-2's padded width. Calls of different steps stand in one captured graph, so that no time is
lost between launches and no draw is everyone's; the arms take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from nanobench.core.machine import commit, describe
from nanobench.core.records import SCHEMA_VERSION, Machine, Record, Spread
from nanobench.micro.paged_kernel import captured
from nanoinfer.devices import choose_device
from nanoinfer.model.config import PRESETS

if TYPE_CHECKING:
    from nanobench.micro.sampling_variants import Setting

BATCHES = (1, 8, 64, 256, 512)
STD = 3.0  # of the logits, about that of a trained GPT-2's
CALLS, REPLAYS, REPEATS = 16, 4, 9


class SamplerTime(Record):
    """Seconds of one call that chooses a token for every row."""

    batch: int
    setting: str
    arm: str
    seconds: Spread


class SamplingReport(Record):
    """One run of `python -m bench sampling`."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["sampling"] = "sampling"
    date: str = ""
    commit: str = ""
    machine: Machine
    vocab_size: int
    std: float
    times: tuple[SamplerTime, ...]
    left_out: dict[str, str] = Field(default_factory=dict)  # arms that could not run, with the reason


def measure(device_name: str | None, path: Path, *, batches: tuple[int, ...] = BATCHES) -> SamplingReport:
    """Measure every case, print a table, write it to `path`. ValueError without a CUDA GPU."""
    device = choose_device(device_name)
    if device.type != "cuda":
        raise ValueError("the sampling benchmark needs a CUDA GPU: in the interpreter a time says nothing")
    from nanobench.micro.sampling_variants import SETTINGS

    config = PRESETS["gpt2"]
    times: list[SamplerTime] = []
    left_out: dict[str, str] = {}
    with torch.inference_mode():
        for batch in batches:
            generator = torch.Generator(device).manual_seed(batch)
            wide = torch.randn(batch, config.padded_vocab, device=device, generator=generator) * STD
            logits = wide.bfloat16()[:, : config.vocab_size]
            for setting in SETTINGS:
                found, absent = _case(setting, logits)
                times, left_out = times + found, left_out | absent
    for name, reason in left_out.items():
        print(f"{name} left out: {reason}")
    report = SamplingReport(
        date=datetime.now(timezone.utc).date().isoformat(), commit=commit(), machine=describe(device),
        vocab_size=config.vocab_size, std=STD, times=tuple(times), left_out=left_out,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return report


def _case(setting: Setting, logits: Tensor) -> tuple[list[SamplerTime], dict[str, str]]:
    """All arms at one batch size and setting, taking turns."""
    from nanobench.micro.sampling_variants import arms

    batch = len(logits)
    rows = [setting.rows(batch, step, logits.device) for step in range(CALLS)]
    samplers, absent = arms(setting, logits, rows[0])
    calls: dict[str, Callable[[int], Tensor]] = {
        name: partial(lambda call, i: call(logits, rows[i]), sampler) for name, sampler in samplers.items()
    }
    graphs = {name: captured(call, CALLS) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, graph in graphs.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(REPLAYS):
                graph.replay()
            torch.cuda.synchronize()
            samples[name].append((time.perf_counter() - start) / (REPLAYS * CALLS))
    found = [
        SamplerTime(batch=batch, setting=setting.name, arm=name, seconds=Spread.of(samples[name])) for name in calls
    ]
    for record in found:
        us = record.seconds
        spread = f"{us.median * 1e6:8.1f} us  ({us.p10 * 1e6:.1f} to {us.p90 * 1e6:.1f})"
        print(f"B={batch:<4} {setting.name:22} {record.arm:22} {spread}")
    return found, absent
