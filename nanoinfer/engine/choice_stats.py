"""Counters of who computed recorded steps. Chapter 6. Other processes read them, and need no torch for that."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from nanoinfer.engine.stats import GraphStats


@dataclass
class ChoiceStats(GraphStats):
    """What `GraphStats` counts, and who computed the steps."""

    computed_by: Counter[str] = field(default_factory=Counter)  # replayed decode steps, by which `Forward`
    timed: dict[str, dict[str, float]] = field(default_factory=dict)  # s of a recorded step, by what may compute it
