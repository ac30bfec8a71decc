"""Counters of an LLM. Chapter 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nanoinfer.engine.replays import Replays


@dataclass
class Stats:
    """Counters of an LLM since it was made."""

    requests: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0  # tokens that were kept
    cached_tokens: int = 0  # prompt tokens that a prefix cache had already
    preemptions: int = 0  # times that a row had to give its room back
    recomputed_tokens: int = 0  # of preempted rows, prompt and new ones
    dropped_tokens: int = 0  # computed past a stop that the host had not seen yet
    verify_steps: int = 0  # steps that brought drafts to be verified; they count among the others, too
    draft_tokens: int = 0  # drafts that were verified
    accepted_tokens: int = 0  # of these, how many were what the row chose

    @property
    def steps(self) -> int:
        """Steps that have begun."""
        return self.prefill_steps + self.decode_steps


@dataclass
class GraphStats(Replays, Stats):
    """What was replayed, what ran eagerly and why, and what recording cost, beside the counters of `Stats`."""

    @property
    def hit_rate(self) -> float:
        """Share of decode steps that were replayed."""
        return self.replayed_steps / max(1, self.decode_steps)

    @property
    def padding_share(self) -> float:
        """Share of the rows of replayed decode steps that were padding."""
        return self.padding_rows / max(1, self.replayed_rows)


class Gauges(NamedTuple):
    """What an engine holds just now; all 0 but `blocks` where it has nothing to do."""

    running: int = 0  # rows of the batch
    waiting: int = 0  # requests without a row
    blocks_used: int = 0  # blocks of the cache that rows own
    blocks_cached: int = 0  # blocks that no row owns, kept for texts that begin as theirs did
    blocks: int = 0  # of the pool; 0 where the cache has none
