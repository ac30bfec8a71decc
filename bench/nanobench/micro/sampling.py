"""Choosing the next tokens, alone: the book's kernel against sorting, torch.topk and rejection, inside a graph.

Logits are bfloat16, in GPT-2's padded width. Calls of different steps stand in one captured graph, so that the draws
differ. The variants take turns. On a CPU logits are float32, and what the engine does there stands against sorting.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from nanobench.core.machine import stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanobench.micro.graph_timing import call_seconds
from nanoinfer.devices import choose_device
from nanoinfer.engine import cpu_sampling, samplers, sampling
from nanoinfer.engine.samplers import Sampler
from nanoinfer.model.config import PRESETS

if TYPE_CHECKING:
    from nanobench.micro.sampling_variants import Setting

BATCHES, ON_A_CPU = (1, 8, 64, 256, 512), (1, 8)
STD = 3.0  # of the logits, about that of a trained GPT-2's
CALLS, REPEATS = 16, 9


class SamplerTime(Record):
    """Seconds of one call that chooses a token for every row."""

    batch: int
    setting: str
    arm: str  # the variant
    seconds: Spread


class SamplingReport(ResultsFile):
    """One run of `python -m bench sampling`."""

    kind: Literal["sampling"] = "sampling"
    vocab_size: int
    std: float
    times: tuple[SamplerTime, ...]
    left_out: dict[str, str] = Field(default_factory=dict)  # variants that could not run, with the reason


def measure(device_name: str | None, path: Path) -> None:
    """Measure every case, print a table, write it to `path`."""
    device = choose_device(device_name)
    on_gpu = device.type == "cuda"
    from nanobench.micro.sampling_variants import SETTINGS

    config = PRESETS["gpt2"]
    times: list[SamplerTime] = []
    left_out: dict[str, str] = {}
    with torch.inference_mode():
        for batch in BATCHES if on_gpu else ON_A_CPU:
            generator = torch.Generator(device).manual_seed(batch)
            wide = torch.randn(batch, config.padded_vocab, device=device, generator=generator) * STD
            logits = (wide.bfloat16() if on_gpu else wide)[:, : config.vocab_size]
            for setting in SETTINGS:
                found, absent = _case(setting, logits, on_gpu)
                times, left_out = times + found, left_out | absent
    for name, reason in left_out.items():
        print(f"{name} left out: {reason}")
    SamplingReport(vocab_size=config.vocab_size, std=STD, times=tuple(times), left_out=left_out, **stamp(device)).save(
        path
    )


def _of_a_cpu(setting: Setting) -> dict[str, Sampler]:
    """What the engine does on a CPU, and where it filters, the same by a sort."""
    if not setting.temperature:
        return {"ours": samplers.greedy}
    if not setting.top_k and setting.top_p == 1:
        return {"ours": samplers.sample}
    return {"ours": cpu_sampling.sample_filtered, "sort": sampling.sample_filtered}


def _case(setting: Setting, logits: Tensor, on_gpu: bool) -> tuple[list[SamplerTime], dict[str, str]]:
    """All variants at one batch size and setting."""
    from nanobench.micro.sampling_variants import sampling_variants

    batch = len(logits)
    rows = [setting.rows(batch, step, logits.device) for step in range(CALLS)]
    samplers, absent = sampling_variants(setting, logits, rows[0]) if on_gpu else (_of_a_cpu(setting), {})
    calls: dict[str, Callable[[int], Tensor]] = {
        name: partial(lambda call, i: call(logits, rows[i]), sampler) for name, sampler in samplers.items()
    }
    found = [
        SamplerTime(batch=batch, setting=setting.name, arm=name, seconds=spread)
        for name, spread in call_seconds(calls, CALLS, REPEATS, on_gpu).items()
    ]
    for record in found:
        us = record.seconds
        spread = f"{us.median * 1e6:8.1f} us  ({us.p10 * 1e6:.1f} to {us.p90 * 1e6:.1f})"
        print(f"B={batch:<4} {setting.name:22} {record.arm:22} {spread}")
    return found, absent
