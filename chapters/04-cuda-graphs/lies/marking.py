"""The marker of a reader's test: it must pass every right engine, and fail every liar.

A test is a function `check(make)` that raises where it finds a lie. `make()` gives a fresh engine (`toy.Toy`), and
`make(graphs=False)` one that calls every step from Python and is always right; both take fill=, as an engine does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from . import catalogue, frozen, padding
from .recorders import recorder_for
from .step import ROWS
from .toy import Toy

Check = Callable[[Callable[..., Toy]], object]


class OneGraphFitsAll(Toy):
    """Reads all slots in every step, so that rows alone are its key: right, and slower."""

    def longest(self) -> int:
        return len(self.column)


class LadderOfAll(Toy):
    """A graph for every number of rows: no padding at all."""

    ladder = tuple(range(1, ROWS + 1))


class BlocksFromBelow(Toy):
    """Gives out its blocks in another order."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.free.reverse()


class ZeroesWhatIsFreed(Toy):
    """Cleans a row's blocks when it has gone."""

    def release(self, row: int) -> None:
        blocks = self.rows[row].blocks
        super().release(row)
        self.k[blocks], self.v[blocks] = 0.0, 0.0


class OnTheHost(Toy):
    """What a caller gets was on the host in between."""

    def result(self, chosen: Tensor) -> Tensor:
        return chosen.cpu().clone()


RIGHT: dict[str, type[Toy]] = {
    "engine": Toy,
    "one-graph-fits-all": OneGraphFitsAll,
    "ladder-of-all": LadderOfAll,
    "blocks-from-below": BlocksFromBelow,
    "zeroes-what-is-freed": ZeroesWhatIsFreed,
    "on-the-host": OnTheHost,
    "one-scale": padding.Scaled,
    "sets-up": catalogue.LIES["cold"].right,
    "count-moves": frozen.CountMoves,
}
LIARS: dict[str, type[Toy]] = {name: lie.wrong for name, lie in catalogue.LIES.items() if lie.scene is not None}
TRUTH: dict[type[Toy], type[Toy]] = {lie.wrong: lie.right for lie in catalogue.LIES.values() if lie.scene is not None}


def verdict(check: Check, name: str, device: str = "cpu") -> str:
    """ "" where the test passes the engine of that name, and else what it says. KeyError where there is none."""
    kind = (RIGHT | LIARS)[name]
    recorder = recorder_for(device)

    def make(*, graphs: bool = True, **options: Any) -> Toy:
        if graphs:
            return kind(recorder, device=device, **options)
        return TRUTH.get(kind, kind)(None, device=device, **options)

    try:
        check(make)
    except Exception as error:  # by an assertion, or as an engine breaks down
        return catalogue.first_line(error)
    return ""


def marks(check: Check, device: str = "cpu") -> dict[str, str]:
    """What a test does that it should not: by name, "is right, and fails: why" or "lies, and passes"."""
    wrong = {}
    for name in RIGHT:
        if told := verdict(check, name, device):
            wrong[name] = f"is right, and fails: {told}"
    for name in LIARS:
        if not verdict(check, name, device):
            wrong[name] = "lies, and passes"
    return wrong
