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
from nanoinfer.parallel.ranks import Ranks


class RankEngine(DeviceScores, GraphEngine):
    """An engine whose device is one of several. A step that fails on one ends all of them: they are no longer alike.

    ranks: those that do what this one does. Only the first rank has any; on all others, `launch` alone is called.
    agree: whether something is so on all ranks, from whether it is so here. A step that one rank replays and another
    runs eagerly would meet in collectives of different sizes, so a capture counts only if it succeeds everywhere.
    """

    def __init__(self, *args: Any, ranks: Ranks, agree: Callable[[bool], bool], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.ranks, self.agree = ranks, agree

    def step(self) -> list[Sequence]:
        with self.ranks.watched("step"):
            return super().step()

    def launch(self, step: Launch) -> Tensor:
        self.ranks.tell("core.launch", step)
        try:
            return super().launch(step)
        except BaseException as error:
            raise self.ranks.failed(error) from error

    def settle(self, work: list[Work], tokens: list[Any]) -> list[Sequence]:
        self.ranks.check()  # tokens of a step that was aborted on a GPU arrive as well, and mean nothing
        return super().settle(work, tokens)

    def abandon(self, cause: BaseException | None = None) -> None:
        with self.ranks.watched("step"):  # of those that were launched, the tokens are awaited
            super().abandon(cause)
        if not self.ranks.cause:
            self.ranks.tell("core.abandon")

    def alike(self) -> bool:
        """Whether all ranks hold the same rows, tokens and positions."""
        model: Any = self.model
        every = model.group.all_gather(self.state.integers)  # (size, 7, rows + 1)
        return bool((every == every[0]).all())

    def _warm(self, key: Key, run: Callable[[], object]) -> None:
        """A failure here is not caught: the other ranks wait in this step's collectives, so all must end."""
        assert self.recorder is not None
        self.recorder.warm(run)
        self.agree(True)  # a sign of life: kernels may have been compiled

    def _try(self, key: Key, attempt: Callable[[], Replayable | None]) -> Replayable | None:
        made = super()._try(key, attempt)
        if self.agree(key not in self.failed):
            return made
        if key not in self.failed:
            self.failed.add(key)
            self._warn(f"{key} runs without a graph", "its capture has failed on another rank")
        return None
