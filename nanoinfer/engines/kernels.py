"""Chapter 6's engines: chapter 5's, and `fused`, whose recorded steps its kernels compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanoinfer.engine.choice import ChoosingEngine
from nanoinfer.engine.choice_stats import ChoiceStats
from nanoinfer.engine.scores import DeviceScores
from nanoinfer.engines.queue import QueueMaker


class KernelQueue(DeviceScores, ChoosingEngine):
    """Chapters 5 and 6 over the engine of chapter 4."""

    Stats = ChoiceStats


class KernelMaker(QueueMaker):
    """A `QueueMaker` that knows engine `fused` besides. pinned: as for `ChoosingEngine`."""

    on_device: Any = KernelQueue

    def __init__(self, engine: str, *args: Any, pinned: bool = False, **settings: Any) -> None:
        super().__init__("paged-graph" if engine == "fused" else engine, *args, **settings)
        self.by_kernels, self.pinned = engine == "fused", pinned

    def recording(self) -> dict[str, Any]:
        settings = super().recording()
        if self.by_kernels and self.kernels and settings["recorder"]:
            settings |= {"forwards": self.forwards(), "pinned": self.pinned}
        return settings

    def forwards(self) -> Callable[..., Any]:
        """Return what makes the ways to compute a step."""
        from nanoinfer.kernels.streamed import fused_forwards  # Triton is not everywhere

        return fused_forwards
