"""The engine of the first rank: it decides alone, and tells the others before its own device. Chapter 8.

The others get what their devices need as plain host data, once where rows move and once a step. All that follows from
it, on the host and on the device, is the same everywhere, since each rank's tokens come out of the same collectives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from nanoinfer.engine.engine import Engine
from nanoinfer.engine.scheduler import Row
from nanoinfer.engine.state import Fetch
from nanoinfer.model.batch import Chunk
from nanoinfer.parallel.ranks import Ranks
from nanoinfer.requests import Request


class LeadingEngine(Engine):
    """An `Engine` whose device is one of several. A step that fails on one of them ends all: they are no longer alike.

    ranks: the others.
    """

    def __init__(self, *args: Any, ranks: Ranks, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.ranks = ranks

    def step(self) -> list[Row]:
        with self.ranks.watched("step"):
            return super().step()

    def _collect(self, lag: int) -> list[Row]:
        if len(self._in_flight) > lag:
            self._in_flight[0].tokens.wait()
        self.ranks.check()  # what was aborted on a GPU arrives as well, and is nothing
        return super()._collect(lag)

    def place(
        self,
        sources: Sequence[int],
        targets: Sequence[int],
        freed: slice,
        begun: Sequence[tuple[int, Request, list[int]]],
    ) -> None:
        if not self.ranks.cause and (sources or begun or freed.start < freed.stop):
            plain = [(slot, replace(each, prompt_token_ids=(), text=None), ids) for slot, each, ids in begun]
            self.ranks.tell("place", sources, targets, freed, plain)
        super().place(sources, targets, freed, begun)

    def run(
        self,
        slots: Sequence[int],
        chunks: Sequence[Chunk],
        following: Mapping[int, Sequence[int]],
        kind: int,
        longest: int,
    ) -> tuple[Tensor, Fetch | None]:
        blocks: Any = self.cache.blocks
        self.ranks.tell("run", blocks and list(blocks.begun), slots, chunks, following, kind, longest)
        try:
            return super().run(slots, chunks, following, kind, longest)
        except BaseException as error:
            raise self.ranks.failed(error) from error
