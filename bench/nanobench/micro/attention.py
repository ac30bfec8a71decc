"""Which SDPA backend runs, with and without a mask, and how long it takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from nanobench.core.machine import place, stamp
from nanobench.core.records import Older, Record, ResultsFile, Spread
from nanobench.core.timing import by_turns, seconds
from nanobench.options import Device, Out

REPEATS = 7


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


class AttentionReport(ResultsFile):
    """One run of `python -m bench attention`."""

    kind: Literal["attention"] = "attention"
    dtype: str
    backends: tuple[Backend, ...] = ()
    read_lengths: Older = ()


def measure(device: Device = None, out: Out = Path("my-bench/attention.json")) -> None:
    """Measure, print, and write."""
    where, dtype = place(device)
    with torch.inference_mode():
        AttentionReport(**stamp(where, dtype)).fill(out, backends=_backends(where, dtype))


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
