"""Chapter 8's engines: chapter 6's, each of one rank of several."""

from __future__ import annotations

from typing import Any

from nanoinfer.engine import cpu_sampling
from nanoinfer.engine.samplers import Samplers
from nanoinfer.engine.stats import Stats
from nanoinfer.engines.drafts import DraftMaker
from nanoinfer.parallel.rank import Rank


class RankMaker(DraftMaker):
    """A `DraftMaker` of a rank's engine. Ranks keep their state on the device in every engine.

    rank: None where there is one device alone.
    """

    def __init__(self, *args: Any, rank: Rank | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.rank = rank
        if rank:
            self.device_state, self.on_device = True, rank.engine(self.kind == "naive")

    def recording(self) -> dict[str, Any]:
        return super().recording() if self.graphs else {"recorder": None, "max_rows": 0, "lag": 0, "counts": Stats}

    def samplers(self) -> Any:
        if not self.rank:
            return super().samplers()
        return self.rank.samplers(self.plain_samplers(), self.model, self.max_batch)

    def plain_samplers(self) -> Samplers:
        samplers = super().plain_samplers()
        if self.rank and self.graphs and self.kernels:
            self.model.ops = self.rank.ops(self.model.ops)
        if not (self.on_gpu or self.graphs):
            samplers = samplers._replace(filtered=cpu_sampling.sample_filtered)
        return samplers
