"""What `bench queue` writes down of each run: times, and what the engine counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from nanobench.core.records import Record
from nanoinfer import LLM

CURVE = np.linspace(0, 1, 101)  # shares of which a file keeps the quantiles


class Latency(Record):
    """Times in seconds: exact quantiles of all of them, and a curve of 101 for a figure."""

    count: int
    p50: float
    p99: float
    longest: float
    curve: tuple[float, ...]  # quantiles at 0%, 1%, ... 100%

    @classmethod
    def of(cls, times: Sequence[float]) -> Latency:
        """Of at least one time."""
        curve = tuple(np.quantile(times, CURVE).round(6).tolist())
        return cls(count=len(times), p50=curve[50], p99=curve[99], longest=curve[100], curve=curve)

    @property
    def p90(self) -> float:
        return self.curve[90]

    def __str__(self) -> str:
        return f"{1e3 * self.p50:.2f} / {1e3 * self.p99:.2f} ms"


class Counted(Record):
    """What an LLM counted in one run; 0 for what its engine does not count."""

    fallbacks: dict[str, int]  # steps that ran eagerly, by reason
    prefill_steps: int = 0  # that ran prompts, beside rows that go on or alone
    decode_steps: int = 0
    replayed_prefills: int = 0
    replayed_steps: int = 0  # of decode
    padding_tokens: int = 0  # of replayed prefills
    padding_rows: int = 0  # of replayed decode steps
    captures: int = 0
    dropped_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0  # after preemptions
    cached_tokens: int = 0  # of prompts, found in shared blocks

    @classmethod
    def so_far(cls, llm: LLM) -> Counted:
        """Since the LLM was made."""
        counts: dict[str, Any] = {name: getattr(llm.stats, name, 0) for name in cls.model_fields}
        return cls(**counts | {"fallbacks": dict(getattr(llm.stats, "fallbacks", {}))})

    def since(self, before: Counted) -> Counted:
        """What came after `before`."""
        counts: dict[str, Any] = {
            name: getattr(self, name) - getattr(before, name) for name in Counted.model_fields if name != "fallbacks"
        }
        return Counted(**counts, fallbacks=dict(Counter(self.fallbacks) - Counter(before.fallbacks)))

    def __str__(self) -> str:
        text = (
            f"{self.prefill_steps} steps with prompts ({self.replayed_prefills} replayed), {self.decode_steps} without"
            f" ({self.replayed_steps}); padding {self.padding_tokens:,} tokens, {self.padding_rows:,} rows"
        )
        eager = "".join(f"; {count} eager: {reason}" for reason, count in self.fallbacks.items())
        return text + eager + (f"; {self.captures} CAPTURES" if self.captures else "")


class WarmUp(Record):
    """What warm_up cost."""

    seconds: float
    captures: int
    graph_bytes: int

    def __str__(self) -> str:
        return f"warm_up {self.seconds:.1f} s, {self.captures} graphs, {self.graph_bytes / 1e6:,.0f} MB"


class Run(Record):
    """Many requests, all asked for in one call of `generate`."""

    seconds: float
    requests: int
    prompt_tokens: int
    new_tokens: int  # recounted from the ids
    ttft_s: tuple[float, ...]  # from the call, in the order of the requests
    ttft: Latency
    itl: Latency
    counted: Counted

    @property
    def tokens_per_s(self) -> float:
        """New tokens over the whole run."""
        return self.new_tokens / self.seconds

    @property
    def computed_share(self) -> float:
        """Of the prompts' tokens, those that were not found in shared blocks."""
        return 1 - self.counted.cached_tokens / self.prompt_tokens

    def __str__(self) -> str:
        return (
            f"{self.tokens_per_s:9,.0f} tok/s, {self.seconds:6.3f} s; p50 / p99 of TTFT {self.ttft}, of ITL {self.itl}"
        )
