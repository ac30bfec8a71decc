"""All five by name: where they were reported, and both sides as searches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from . import right, wrong

small = right.small
Found = tuple[int, int, list[str]]  # as small.search has it


@functools.cache
def searched(search: Callable[[], Found]) -> Found:
    """What a search finds. Those of the right side take seconds."""
    return search()


@dataclass(frozen=True)
class Race:
    """One defect. threads: where it was reported. right, wrong: all interleavings of either side."""

    threads: tuple[str, ...]
    right: Callable[[], Found]
    wrong: Callable[[], Found]

    def sides(self) -> tuple[list[str], list[str], list[str]]:
        """The shortest order of events that loses, if there is one."""
        return [], searched(self.right)[2], searched(self.wrong)[2]

    def lines(self) -> list[str]:
        points, ended, _ = searched(self.right)
        head = f"right: {ended:,} interleavings over {points} points, all end right"
        return [head, "wrong:", *searched(self.wrong)[2]]


def layers(exchange: object, number: int) -> Found:
    """All interleavings of so many half-blocks."""
    found: Found = small.search(*small.grid(exchange, number))
    return found


def resident(refuse: Callable[[int, int], str], fit: int) -> Found:
    """A launch of G programs where so many can run at once; all that run at once, if it is refused."""
    most = right.G if refuse(right.G, fit) else fit
    found: Found = small.search(*small.grid(right.Barrier(), 1), resident=most)
    return found


LIES = {
    "not-resident": Race(
        ("cub#369", "mirage#761"), partial(resident, right.refuse, 1), partial(resident, wrong.launched, 1)
    ),
    "reset-by-last": Race(
        ("cuml#458", "Fuser#2081"), partial(layers, right.Barrier(), 2), partial(layers, wrong.ResetByLast(), 2)
    ),
    "second-replay": Race(
        ("aiter#4494", "aiter#4709", "aiter#4916"),
        partial(right.launches, right.Barrier),
        partial(right.launches, wrong.SecondReplay),
    ),
    "early-unlock": Race(
        ("triton#4504", "triton#6307", "tritonbench#1266"),
        partial(right.warps, right.Warps),
        partial(right.warps, wrong.EarlyUnlock),
    ),
    "two-halves": Race(
        ("nccl#2053", "nccl#281"), partial(layers, small.Words(), 1), partial(layers, wrong.TwoHalves(), 1)
    ),
}


SUBJECTS = {f"{name:15}{side}": getattr(race, side) for name, race in LIES.items() for side in ("right", "wrong")}


def check(search: Callable[[], Found]) -> None:
    """The whole test: all interleavings end as they should. AssertionError with how the shortest that does not ends."""
    _, _, lost = searched(search)
    assert not lost, lost[-1]
