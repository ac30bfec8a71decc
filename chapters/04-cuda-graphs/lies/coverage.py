"""Which steps have a graph: a step without one is slow or fails, and no message says so."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from .frozen import Make, together
from .toy import KEPT, Toy


class LadderShort(Toy):
    """Powers of two, as far as they go; but six rows may come."""

    ladder = (1, 2, 4)


def every_number_of_rows(make: Make) -> list[str]:
    """From one row to the most that the engine takes."""
    engine = make()
    for text in ("wolf ", "crane ", "ox ", "lark ", "hen ", "bat "):
        engine.admit(text)
        engine.step()
    return engine.texts()


class OtherKey(Toy):
    """Graphs are captured under the shape that they have, and looked up under the shape of what is live."""

    def captured(self, rows: int, longest: int) -> tuple[Any, Tensor] | None:
        super().captured(rows, longest)
        return self.graphs.get((len(self.rows), len(self.rows[0].text)))


def count_replays(make: Make) -> list[str]:
    """The text is right, so what is counted must be, too."""
    engine = make()
    for text in ("wolf ", "crane ", "ox "):
        engine.admit(text)
    return [*engine.run(6), f"steps that were not replayed: {engine.missed}"]


class WrongWayRound(Toy):
    """Where there are too many graphs, the one goes that was used just now."""

    def used(self, key: Hashable) -> None:
        self.graphs.move_to_end(key, last=False)
        if len(self.graphs) > KEPT:
            self.graphs.popitem(last=False)


def more_shapes_than_graphs(make: Make) -> list[str]:
    """Twelve shapes, one after another, each for some steps: none has to be captured twice."""
    engine = make()
    for rows in (1, 2, 4):
        for _ in range(rows):
            engine.admit("ox ")
        engine.run(24)
        engine.reset()
    return [f"shapes that were captured more than once: {max(0, engine.captures - 12)}"]


class SetsUp(Toy):
    """Finds out something the first time, for which it waits for the device. A right engine: it warms every step."""

    scale: float | None = None

    def attend(self, B: int, longest: int) -> Tensor:
        if self.scale is None:
            self.scale = float(self.onehot.amax())
        return super().attend(B, longest) / self.scale


class Cold(SetsUp):
    """The same without a warm-up, which takes long and seems to do nothing."""

    def warm(self, step: Callable[[], Tensor]) -> None:
        pass


capture_first_thing = together("wolf ", steps=5)  # a fresh engine whose first step is captured
