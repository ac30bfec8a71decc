"""Chapter 1's engine on several ranks: each step feeds whole texts, and nothing is kept. Chapter 8."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nanoinfer.cache.none import NoCache
from nanoinfer.engine.device import Launch
from nanoinfer.engine.engine import Sequence, Work
from nanoinfer.engine.mixed import Mixed, Piece
from nanoinfer.engine.step import Layout
from nanoinfer.parallel.leader import LeadingEngine, RankEngine


class NothingKept(NoCache):
    """A `NoCache` for an engine whose state is on the device: whatever happens to a row, there is nothing to do."""

    def nothing(self, *_: Any) -> None:
        """Sequences begin, move and leave, and no key or value has to follow."""

    rename = begin = move = vacate = nothing

    def news(self, work: list[Work]) -> list[tuple[int, int, int]]:
        """There are no block tables."""
        return []

    def tensors(self) -> tuple[Tensor, ...]:
        """There are none."""
        return ()

    def shapes(self, rows: int, tokens: int) -> list[tuple[int, int]]:
        """No step of this engine is recorded."""
        return []

    def wanted(self, layout: Layout) -> None:
        """No step of this engine is recorded."""


class NaiveRank(RankEngine):
    """A `RankEngine` that keeps no keys and values: a decoding sequence is fed like a prompt, at every step anew."""

    def __init__(self, model: Any, cache: NoCache, *args: Any, **settings: Any) -> None:
        super().__init__(model, NothingKept(), *args, **settings)

    def pack(self, work: list[Work]) -> Launch:
        step = super().pack(work)
        for s, _, _ in work:
            s.cached = 0
        return step

    def prefill_of(self, work: list[Work], begun: list[Sequence]) -> Mixed:
        pieces = [
            Piece(s.row, start, s.tokens[:count], True, s.following(start, count) if s in begun else ())
            for s, start, count in work
        ]
        return Mixed(pieces, [], [])


class LeadingNaive(NaiveRank, LeadingEngine):
    """The first rank's."""
