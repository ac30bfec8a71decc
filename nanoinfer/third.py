"""The front door of rung 8: chapter 5's, over several ranks. Chapter 8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nanoinfer import second
from nanoinfer.devices import choose_device
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.parallel.meeting import lead
from nanoinfer.parallel.rank import Rank
from nanoinfer.parallel.sharded import PartOf


class LLM(second.LLM):
    """As chapter 5's. tensor_parallel: ranks that hold the model together, a GPU each, or a process on a CPU.

    rank: this one, where it is not the first. core: the engine, which is told what the first rank launches.
    """

    def __init__(
        self, model: str | Path = "small", engine: str | None = None, *, tensor_parallel: int = 1,
        revision: str | None = None, rank: Rank | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        if tensor_parallel > 1:
            engine = "paged-graph" if engine in (None, "fused") else engine  # ranks take chapter 4's steps
            told = settings | {"engine": engine, "tensor_parallel": tensor_parallel}
            rank = rank or lead(self, LLM, told, model, revision, choose_device(settings.get("device")))
            settings["device"] = str(rank.device)
        self.rank = rank
        super().__init__(model, engine, revision=revision, rank=rank, **settings)
        self.core = self.engine
        if self.rank:
            self.rank.least(0)  # from here on, all are there

    def load(self, model: str | Path, *where: Any, **settings: Any) -> GPT2:
        return (PartOf(self.rank.group).load if self.rank else super().load)(model, *where, **settings)
