"""Choosing tokens alone: the kernel against a sort, in a graph; or what a CPU does.

Logits are bfloat16, in GPT-2's padded width. Calls of different steps stand in one captured graph, so that the draws
differ. The variants take turns. On a CPU logits are float32, and what the engine does there stands against sorting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

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
from nanoinfer.engine.state import BatchState
from nanoinfer.model.config import PRESETS

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
    times: tuple[SamplerTime, ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)  # an older run's peers that were not installed


@dataclass(frozen=True)
class Setting:
    """Parameters of all rows."""

    name: str
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0

    def rows(self, batch: int, step: int, device: torch.device) -> BatchState:
        """`batch` rows at this step, each with a seed of its own."""
        rows = BatchState.empty(batch, device).at(slice(0, batch))
        rows.seed.copy_(torch.arange(batch) * 7919)
        rows.step.fill_(step)
        rows.temperature.fill_(self.temperature)
        rows.top_k.fill_(self.top_k)
        rows.top_p.fill_(self.top_p)
        return rows


SETTINGS = (
    Setting("top-k 50, top-p 0.95", top_k=50, top_p=0.95), Setting("top-p 0.95", top_p=0.95), Setting("no filter"),
    Setting("greedy", temperature=0.0),
)  # fmt: skip


def measure(
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    out: Out = Path("my-bench/sampling.json"),
) -> None:
    """Measure every case, print it, write it."""
    where, config = choose_device(device), PRESETS["gpt2"]
    with torch.inference_mode():
        report = SamplingReport(vocab_size=config.vocab_size, std=STD, **stamp(where))
        for batch in BATCHES if where.type == "cuda" else ON_A_CPU:
            generator = torch.Generator(where).manual_seed(batch)
            wide = torch.randn(batch, config.padded_vocab, device=where, generator=generator) * STD
            logits = (wide.bfloat16() if where.type == "cuda" else wide)[:, : config.vocab_size]
            report = report.fill(out, times=(time for setting in SETTINGS for time in _case(setting, logits)))


def variants(setting: Setting, on_gpu: bool) -> dict[str, Sampler]:
    """What the engine does, and the same in PyTorch: by a sort where ids are filtered. Else that is a CPU's."""
    filters = setting.top_k or setting.top_p < 1
    name = "sort" if filters else "no sort" if setting.temperature else "argmax"
    plain = sampling.sample_filtered if filters else samplers.sample if setting.temperature else samplers.greedy
    if on_gpu:
        from nanoinfer.kernels import sampling as kernels  # Triton is not everywhere

        return {"ours": kernels.sample, name: plain}
    return {"ours": cpu_sampling.sample_filtered, name: plain} if filters else {"ours": plain}


def _case(setting: Setting, logits: Tensor) -> Iterator[SamplerTime]:
    """All variants at one batch size and setting. ValueError where one chooses what the filters drop."""
    rows = [setting.rows(len(logits), step, logits.device) for step in range(CALLS)]
    made = variants(setting, logits.device.type == "cuda")
    for name, sampler in made.items():
        if not allowed(logits, rows[0], sampler(logits, rows[0])):
            raise ValueError(f"{name} chose a token that {setting.name} drops")
    calls = {name: partial(lambda call, i: call(logits, rows[i]), sampler) for name, sampler in made.items()}
    for name, spread in call_seconds(calls, CALLS, REPEATS, logits.device).items():
        yield SamplerTime(batch=len(logits), setting=setting.name, arm=name, seconds=spread)


def allowed(logits: Tensor, rows: BatchState, tokens: Tensor) -> bool:
    """Whether the filters keep all these tokens: top_p of all probabilities, which keeps no fewer than of the top k."""
    if not rows.temperature.any():
        return torch.equal(tokens, samplers.greedy(logits, rows))
    scores = sampling.scaled(logits.float(), rows.temperature)
    by_k = sampling.threshold(scores, rows.top_k, torch.ones_like(rows.top_p))
    by_p = sampling.threshold(scores, torch.zeros_like(rows.top_k), rows.top_p * 1.001)
    return bool((scores.gather(1, tokens.long()[:, None]) >= torch.maximum(by_k, by_p)).all())
