"""Which SDPA backend runs, with and without a mask; and what the dense cache's read length costs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from nanobench.core.machine import place, stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanobench.core.timing import by_turns, seconds
from nanobench.options import Device, Out
from nanoinfer.cache.captured import CapturedDense
from nanoinfer.engine.samplers import greedy
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import decode_step
from nanoinfer.model.config import PRESETS
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model

REPEATS = 7
STEPS = 20


class Backend(Record):
    """The kernel that torch's own dispatcher chooses for one call of scaled_dot_product_attention."""

    what: str  # prefill or decode
    mask: str  # none, is_causal, boolean, or additive: the boolean one as numbers
    batch: int
    queries: int
    keys: int
    backend: str
    seconds: Spread

    @property
    def shape(self) -> str:
        return f"{self.what}, B = {self.batch}, {self.queries} × {self.keys}"


class ReadLength(Record):
    """A decode step over a cache of 1024 slots at one context, by how far it reads."""

    model: str
    batch: int
    context: int
    read_all_s: Spread
    read_multiple_s: Spread


class AttentionReport(ResultsFile):
    """One run of `python -m bench attention`."""

    kind: Literal["attention"] = "attention"
    dtype: str
    backends: tuple[Backend, ...]
    read_lengths: tuple[ReadLength, ...]


def measure(device: Device = None, out: Out = Path("my-bench/attention.json")) -> None:
    """Measure both, print both, and write them."""
    where, dtype = place(device)
    with torch.inference_mode():
        backends, lengths = tuple(_backends(where, dtype)), tuple(_read_lengths(where, dtype))
    AttentionReport(backends=backends, read_lengths=lengths, **stamp(where, dtype)).save(out)
    for b in backends:
        shape = f"B={b.batch:<4} {b.queries:>4} queries x {b.keys:>4} keys"
        print(f"{b.what:8} {shape}  mask {b.mask:10} {b.backend:22} {b.seconds.median * 1e6:8.1f} us")
    for r in lengths:
        every, few = r.read_all_s.median * 1e3, r.read_multiple_s.median * 1e3
        both = f"all read {every:7.2f} ms, a multiple of {CapturedDense.read_multiple} {few:7.2f} ms"
        print(f"{r.model} decode B={r.batch:<4} context {r.context:>4} of 1024: {both}, x{every / few:.2f}")


def _backends(device: torch.device, dtype: torch.dtype) -> Iterator[Backend]:
    """One layer of gpt2's heads at prefill and decode, with and without a mask."""
    names = {int(getattr(SDPBackend, name)): name for name in dir(SDPBackend) if name.isupper()}
    calls = 50 if device.type == "cuda" else 3
    cases = [("prefill", 1, 512, 512), ("prefill", 8, 512, 512), ("decode", 1, 1, 1024), ("decode", 64, 1, 1024)]
    for what, batch, queries, keys in cases:
        q = torch.randn(batch, 12, queries, 64, device=device, dtype=dtype)
        k, v = torch.randn(2, batch, 12, keys, 64, device=device, dtype=dtype)
        boolean = torch.ones(batch, 1, queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
        additive = torch.zeros_like(boolean, dtype=dtype).masked_fill(~boolean, -torch.inf)
        masks = {"none": None, "is_causal": None, "boolean": boolean, "additive": additive}
        if queries != keys:
            del masks["is_causal"]  # the triangle would be aligned to the top left: fast, and wrong
        for mask, tensor in masks.items():
            options: dict[str, Any] = {"attn_mask": tensor, "is_causal": mask == "is_causal"}
            choice = int(torch._fused_sdp_choice(q, k, v, **options))  # what the dispatcher itself calls
            call = partial(F.scaled_dot_product_attention, q, k, v, **options)
            [times] = by_turns({mask: partial(seconds, call, device, calls)}, REPEATS).values()
            yield Backend(
                what=what, mask=mask, batch=batch, queries=queries, keys=keys,
                backend=names.get(choice, str(choice)), seconds=Spread.of(times),
            )  # fmt: skip


def _read_lengths(device: torch.device, dtype: torch.dtype) -> Iterator[ReadLength]:
    """Decode steps of gpt2 over a cache of 1024 slots: all of them read, or as many as a captured step reads."""
    config = PRESETS["gpt2"]
    model = random_model(config, 0, device=device, dtype=dtype)
    for batch in (1, 8, 64, 256) if device.type == "cuda" else (1, 8):
        for context in (64, 500, 1000):
            cache = CapturedDense(config, batch, 1024, device, dtype)
            reads = {"read_all_s": 1024, "read_multiple_s": cache.bucket(context + STEPS)}
            arms = {name: partial(_step_seconds, model, cache, batch, context, read) for name, read in reads.items()}
            spreads = {name: Spread.of(times) for name, times in by_turns(arms, REPEATS).items()}
            yield ReadLength(model="gpt2", batch=batch, context=context, **spreads)
            del cache, arms


def _step_seconds(model: GPT2, cache: CapturedDense, batch: int, context: int, read: int) -> float:
    """Seconds of a decode step of rows that begin at this context."""
    state = BatchState.empty(batch, model.device)
    state.position.fill_(context)
    state.live.fill_(1)
    state.row.copy_(torch.arange(batch + 1))
    return seconds(lambda: decode_step(model, cache, state, batch, read, greedy), model.device, STEPS)
