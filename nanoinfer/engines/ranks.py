"""Chapter 8's engines: chapter 6's, each of one rank of several."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from nanoinfer.engines.drafts import DraftMaker
from nanoinfer.parallel.joined import JoinedSamplers
from nanoinfer.parallel.leader import RankEngine
from nanoinfer.parallel.rank import Rank
from nanoinfer.parallel.sharded import ReducedOps


class RankMaker(DraftMaker):
    """A `DraftMaker` of a rank's engine. Ranks keep their state on the device in every engine.

    rank: None where there is one device alone.
    """

    def __init__(self, *args: Any, rank: Rank | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.rank = rank
        if rank:
            self.keep_state(partial(RankEngine, rank=rank), "ranks")

    def samplers(self) -> Any:
        if not self.rank:
            return super().samplers()
        base, model = self.plain_samplers(), cast(Any, self.model)
        if self.graphs and self.kernels:
            model.ops = ReducedOps(model.ops, self.rank.group)
        return JoinedSamplers(model, base).samplers(self.max_batch)
