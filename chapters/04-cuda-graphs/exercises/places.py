"""What the places of chapter 4's exercises share: without a GPU the engine records with the stand-in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nanoinfer.course.swapping import replaced
from nanoinfer.graphs import GraphRunner
from nanoinfer.stand_in import StandInGraph, record


class StandIn:
    """A recorder for a machine without a GPU."""

    def warm(self, step: Callable[[], object]) -> None:
        """Run the step."""
        step()

    def record(self, step: Callable[[], object]) -> StandInGraph:
        """Note what the step does."""
        return record(step)[0]


@contextmanager
def recorded() -> Iterator[None]:
    """A `GraphRunner` that is made meanwhile records, with or without a GPU; without one it is no faster for it."""
    make = GraphRunner.__init__

    def made(self: Any, model: Any, *args: Any, recorder: Any, **settings: Any) -> None:
        if recorder is None and model.device.type == "cpu":
            recorder = StandIn()
        make(self, model, *args, recorder=recorder, **settings)

    with replaced("nanoinfer.graphs:GraphRunner.__init__", made):
        yield
