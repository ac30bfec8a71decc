"""Counters of an LLM that replays recorded steps: those of the queue, of replays, and of who computed them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from nanoinfer.engine.replays import Replays
from nanoinfer.engine.stats import Stats


@dataclass
class GraphStats(Replays, Stats):
    """What was replayed, what ran eagerly and why, and what recording cost, beside the counters of `Stats`."""

    computed_by: Counter[str] = field(default_factory=Counter)  # replayed decode steps, by which `Forward`
    timed: dict[str, dict[str, float]] = field(default_factory=dict)  # s of a recorded step, by what may compute it

    @property
    def hit_rate(self) -> float:
        """Share of decode steps that were replayed."""
        return self.replayed_steps / max(1, self.decode_steps)

    @property
    def padding_share(self) -> float:
        """Share of the rows of replayed decode steps that were padding."""
        return self.padding_rows / max(1, self.replayed_rows)
