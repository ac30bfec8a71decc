"""The engine of a rank: the first one decides alone, and tells the others what it launches. Chapter 8.

All that a device is told of a step is a `Launch`, plain integers. The first rank sends it to the others and runs it on
its own device. They run the same one, and what follows from it is the same everywhere, since each rank's tokens come
out of the same collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nanoinfer.engine.device import Launch
from nanoinfer.engine.engine import Sequence, Work
from nanoinfer.engine.graphs import GraphEngine, Key, Replayable
from nanoinfer.engine.scores import DeviceScores
from nanoinfer.parallel.rank import Rank


class RankEngine(DeviceScores, GraphEngine):
    """An engine whose device is one of several. A step that fails on one ends all of them: they are no longer alike.

    rank: which tells those that do what this one does. On all but the first, `launch` alone is called. A step that one
    rank replays and another runs eagerly would meet in collectives of different sizes, so a capture counts only if it
    succeeds everywhere.
    """

    def __init__(self, *args: Any, rank: Rank, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.rank = rank

    def step(self) -> list[Sequence]:
        with self.rank.watched("step"):
            return super().step()

    def launch(self, step: Launch) -> Tensor:
        self.rank.tell("core.launch", step)
        try:
            return super().launch(step)
        except BaseException as error:
            raise self.rank.failed(error) from error

    def settle(self, work: list[Work], tokens: list[Any]) -> list[Sequence]:
        self.rank.check()  # tokens of a step that was aborted on a GPU arrive as well, and mean nothing
        return super().settle(work, tokens)

    def abandon(self, cause: BaseException | None = None) -> None:
        with self.rank.watched("step"):  # of those that were launched, the tokens are awaited
            super().abandon(cause)
        if not self.rank.cause:
            self.rank.tell("core.abandon")

    def alike(self) -> bool:
        """Whether all ranks hold the same rows, tokens and positions."""
        model: Any = self.model
        every = model.group.all_gather(self.state.integers)  # (size, 7, rows + 1)
        return bool((every == every[0]).all())

    def _warm(self, key: Key, run: Callable[[], object]) -> None:
        """A failure here is not caught: the other ranks wait in this step's collectives, so all must end."""
        assert self.recorder is not None
        self.recorder.warm(run)
        self.rank.agree(True)  # a sign of life: kernels may have been compiled

    def _try(self, key: Key, attempt: Callable[[], Replayable | None]) -> Replayable | None:
        made = super()._try(key, attempt)
        if self.rank.agree(key not in self.failed):
            return made
        if key not in self.failed:
            self.failed.add(key)
            self._warn(f"{key} runs without a graph", "its capture has failed on another rank")
        return None
