"""Choosing tokens alone: the kernel against a sort, torch.topk and rejection, in a graph; or what a CPU does.

Logits are bfloat16, in GPT-2's padded width. Calls of different steps stand in one captured graph, so that the draws
differ. The variants take turns. On a CPU logits are float32, and what the engine does there stands against sorting.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import torch
import typer
from pydantic import Field
from torch import Tensor

from nanobench.core.machine import stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanobench.core.timing import call_seconds
from nanobench.options import Out
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


def measure(
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    out: Out = Path("my-bench/sampling.json"),
) -> None:
    """Measure every case, print a table, write it."""
    from nanobench.micro.sampling_variants import SETTINGS

    where, config, left_out = choose_device(device), PRESETS["gpt2"], dict[str, str]()
    on_gpu, times = where.type == "cuda", list[SamplerTime]()
    with torch.inference_mode():
        for batch in BATCHES if on_gpu else ON_A_CPU:
            generator = torch.Generator(where).manual_seed(batch)
            wide = torch.randn(batch, config.padded_vocab, device=where, generator=generator) * STD
            logits = (wide.bfloat16() if on_gpu else wide)[:, : config.vocab_size]
            times += [time for setting in SETTINGS for time in _case(setting, logits, left_out)]
    for name, reason in left_out.items():
        print(f"{name} left out: {reason}")
    report = SamplingReport(
        vocab_size=config.vocab_size, std=STD, times=tuple(times), left_out=left_out, **stamp(where)
    )  # fmt: skip
    report.save(out)


def _of_a_cpu(setting: Setting) -> dict[str, Sampler]:
    """What the engine does on a CPU, and where it filters, the same by a sort."""
    if not setting.temperature:
        return {"ours": samplers.greedy}
    if not setting.top_k and setting.top_p == 1:
        return {"ours": samplers.sample}
    return {"ours": cpu_sampling.sample_filtered, "sort": sampling.sample_filtered}


def _case(setting: Setting, logits: Tensor, left_out: dict[str, str]) -> Iterator[SamplerTime]:
    """All variants at one batch size and setting; why others are none goes to `left_out`."""
    from nanobench.micro.sampling_variants import sampling_variants

    batch, device = len(logits), logits.device
    rows = [setting.rows(batch, step, device) for step in range(CALLS)]
    on_gpu = device.type == "cuda"
    variants = sampling_variants(setting, logits, rows[0], left_out) if on_gpu else _of_a_cpu(setting)
    calls = {name: partial(lambda call, i: call(logits, rows[i]), sampler) for name, sampler in variants.items()}
    for name, spread in call_seconds(calls, CALLS, REPEATS, device).items():
        print(f"B={batch:<4} {setting.name:22} {name:22} {spread.in_us()}")
        yield SamplerTime(batch=batch, setting=setting.name, arm=name, seconds=spread)
