"""Counters of an engine that replays recorded steps. Chapter 4."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Replays:
    """What was replayed, what ran eagerly and why, and what recording cost."""

    replayed_steps: int = 0  # decode steps that were replayed
    replayed_prefills: int = 0
    replayed_rows: int = 0  # rows of replayed decode steps, padding included
    padding_rows: int = 0  # of these
    padding_tokens: int = 0  # of replayed prefills
    fallbacks: Counter[str] = field(default_factory=Counter)  # steps that ran eagerly, by reason
    captures: int = 0
    capture_s: float = 0.0
    graph_bytes: int = 0  # what captures took of the device's memory, as the driver counts
