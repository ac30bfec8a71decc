"""Counters of an LLM. Chapter 1."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Stats:
    """Counters of an LLM since it was made."""

    requests: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0  # tokens that were kept
    dropped_tokens: int = 0  # computed past a stop that the host had not seen yet
    # Of chapter 4's runner:
    replayed_steps: int = 0  # decode steps that were replayed
    replayed_prefills: int = 0
    replayed_rows: int = 0  # rows of replayed decode steps, padding included
    padding_rows: int = 0  # of these
    fallbacks: Counter[str] = field(default_factory=Counter)  # steps that ran eagerly, by reason
    captures: int = 0
    capture_s: float = 0.0
    graph_bytes: int = 0  # what captures took of the device's memory, as the driver counts

    @property
    def hit_rate(self) -> float:
        """Share of decode steps that were replayed."""
        return self.replayed_steps / max(1, self.decode_steps)

    @property
    def padding_share(self) -> float:
        """Share of the rows of replayed decode steps that were nobody's."""
        return self.padding_rows / max(1, self.replayed_rows)
