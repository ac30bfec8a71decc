"""All five by name: where they were reported, and both sides as searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from nanobook.lies import Lie

from . import right, wrong

small = right.small
Found = tuple[int, int, list[str]]  # as small.search has it


@cache
def searched(search: Callable[[Any], Found], kind: object) -> Found:
    """What a search finds. Those of the right side take seconds."""
    return search(kind)


@dataclass(frozen=True)
class Race(Lie):
    """One defect. scene: all interleavings of one side."""

    def found(self, kind: object) -> Found:
        """What the search finds of one side."""
        return searched(self.scene, kind)

    def tell(self, kind: object) -> list[str]:
        """The shortest order of events that loses, if there is one."""
        return self.found(kind)[2]

    def truth(self) -> list[str]:
        """There is none."""
        return []

    def lines(self) -> list[str]:
        """How many interleavings the right one has, and the order by which the wrong one loses."""
        points, ended, _ = self.found(self.right)
        head = f"right: {ended:,} interleavings over {points} points, all end right"
        return [head, "wrong:", *self.tell(self.wrong)]


def layers(exchange: object, number: int = 1, resident: int = right.G) -> Found:
    """All interleavings of so many half-blocks. resident: how many programs run at once."""
    found: Found = small.search(*small.grid(exchange, number), resident=resident)
    return found


def launched(refuse: Callable[[int, int], str]) -> Found:
    """A launch of G programs where one can run at once; all that run at once, if it is refused."""
    return layers(right.Barrier(), resident=right.G if refuse(right.G, 1) else 1)


two_layers = partial(layers, number=2)
LIES = {
    "not-resident": Race(("cub#369", "mirage#761"), wrong.launched, launched, right.refuse),
    "reset-by-last": Race(("cuml#458", "Fuser#2081"), wrong.ResetByLast(), two_layers, right.Barrier()),
    "second-replay": Race(
        ("aiter#4494", "aiter#4709", "aiter#4916"), wrong.SecondReplay, right.launches, right.Barrier
    ),
    "early-unlock": Race(
        ("triton#4504", "triton#6307", "tritonbench#1266"), wrong.EarlyUnlock, right.warps, right.Warps
    ),
    "two-halves": Race(("nccl#2053", "nccl#281"), wrong.TwoHalves(), layers, small.Words()),
}
SUBJECTS = {
    f"{name:15}{side}": partial(race.found, getattr(race, side)) for name, race in LIES.items()
    for side in ("right", "wrong")
}  # fmt: skip


def check(search: Callable[[], Found]) -> None:
    """The whole test: all interleavings end as they should. AssertionError with how the shortest that does not ends."""
    _, _, lost = search()
    assert not lost, lost[-1]
