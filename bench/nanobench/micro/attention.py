"""Which of PyTorch's attention kernels runs, asked from torch; and what it costs to read a whole cache under a mask."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from nanobench.core.machine import stamp, synchronize
from nanobench.core.records import Record, ResultsFile, Spread
from nanoinfer.cache.captured import CapturedDense
from nanoinfer.devices import choose_device, choose_dtype
from nanoinfer.engine.samplers import greedy
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import decode_step
from nanoinfer.model.config import PRESETS
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


def measure(device_name: str | None, path: Path) -> None:
    """Measure both, print both, and write them to `path`."""
    device = choose_device(device_name)
    dtype = choose_dtype(None, device)
    with torch.inference_mode():
        backends = tuple(_backends(device, dtype))
        lengths = tuple(_read_lengths(device, dtype))
    AttentionReport(
        dtype=str(dtype).removeprefix("torch."), backends=backends, read_lengths=lengths, **stamp(device)
    ).save(path)
    for b in backends:
        shape = f"B={b.batch:<4} {b.queries:>4} queries x {b.keys:>4} keys"
        print(f"{b.what:8} {shape}  mask {b.mask:10} {b.backend:22} {b.seconds.median * 1e6:8.1f} us")
    for r in lengths:
        gain = r.read_all_s.median / r.read_multiple_s.median
        every, few = r.read_all_s.median * 1e3, r.read_multiple_s.median * 1e3
        both = f"all read {every:7.2f} ms, a multiple of {CapturedDense.read_multiple} {few:7.2f} ms"
        print(f"{r.model} decode B={r.batch:<4} context {r.context:>4} of 1024: {both}, x{gain:.2f}")


def _backends(device: torch.device, dtype: torch.dtype) -> list[Backend]:
    """One layer of gpt2's heads at prefill and decode, with and without a mask."""
    found = []
    cases = [("prefill", 1, 512, 512), ("prefill", 8, 512, 512), ("decode", 1, 1, 1024), ("decode", 64, 1, 1024)]
    for what, batch, queries, keys in cases:
        q = torch.randn(batch, 12, queries, 64, device=device, dtype=dtype)
        k, v = torch.randn(2, batch, 12, keys, 64, device=device, dtype=dtype)
        boolean = torch.ones(batch, 1, queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
        additive = torch.zeros_like(boolean, dtype=dtype).masked_fill(~boolean, -torch.inf)
        masks = {"boolean": boolean, "additive": additive}
        for mask in ("none", "is_causal", "boolean", "additive"):
            if mask == "is_causal" and queries != keys:
                continue  # the triangle would be aligned to the top left: fast, and wrong
            options: dict[str, Any] = {"attn_mask": masks.get(mask), "is_causal": mask == "is_causal"}
            choice = torch._fused_sdp_choice(q, k, v, **options)  # what the dispatcher itself calls
            times = _times(device, partial(F.scaled_dot_product_attention, q, k, v, **options))
            found.append(
                Backend(
                    what=what, mask=mask, batch=batch, queries=queries, keys=keys,
                    backend=_name(choice), seconds=times,
                )
            )  # fmt: skip
    return found


def _name(choice: int) -> str:
    names = {int(getattr(SDPBackend, name)): name for name in dir(SDPBackend) if name.isupper()}
    return names.get(int(choice), str(choice))


def _read_lengths(device: torch.device, dtype: torch.dtype) -> list[ReadLength]:
    """Decode steps of gpt2 over a cache of 1024 slots: all of them read, or as many as a captured step reads."""
    config = PRESETS["gpt2"]
    model = random_model(config, 0, device=device, dtype=dtype)
    found = []
    for batch in (1, 8, 64, 256) if device.type == "cuda" else (1, 8):
        for context in (64, 500, 1000):
            both = []
            cache = CapturedDense(config, batch, 1024, device, dtype)
            samples: list[list[float]] = [[], []]
            for repeat in range(REPEATS + 1):
                for which, read in enumerate((1024, cache.bucket(context + STEPS))):  # A B A B
                    state = BatchState.empty(batch, device)
                    state.position.fill_(context)
                    state.live.fill_(1)
                    state.row.copy_(torch.arange(batch + 1))
                    synchronize(device)
                    start = time.perf_counter()
                    for _ in range(STEPS):
                        decode_step(model, cache, state, batch, read, greedy)
                    synchronize(device)
                    if repeat:  # the first is the warm-up
                        samples[which].append((time.perf_counter() - start) / STEPS)
            both = [Spread.of(times) for times in samples]
            found.append(
                ReadLength(model="gpt2", batch=batch, context=context, read_all_s=both[0], read_multiple_s=both[1])
            )
            del cache
    return found


def _times(device: torch.device, call: Callable[[], object]) -> Spread:
    """Seconds a call: many calls between two synchronizations, so that launches overlap with the work."""
    samples = []
    calls = 50 if device.type == "cuda" else 3
    for repeat in range(REPEATS + 1):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        if repeat:
            samples.append((time.perf_counter() - start) / calls)
    return Spread.of(samples)
