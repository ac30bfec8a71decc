"""What kernels-that-raced.md shows: for each race the shortest order of events that loses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from nanobook.examples import load

catalogue = load(Path(__file__).with_name("loading.py")).races("catalogue")


def __getattr__(name: str) -> Callable[[], None]:
    """A function for each race: `two_halves` is the one called two-halves."""
    race = name.replace("_", "-")
    if race not in catalogue.RACES:
        raise AttributeError(name)
    return functools.partial(show, race)


def show(name: str) -> None:
    """Print how many interleavings of the right side end right, and the shortest of the wrong side that does not."""
    race = catalogue.RACES[name]
    points, ended, _ = race.right()
    print(f"right: {ended:,} interleavings over {points} points, all end right\nwrong:")
    print(*race.wrong()[2], sep="\n")


def verdicts() -> None:
    """What the test says of each, the right side and the wrong one."""
    for name, race in catalogue.RACES.items():
        for side, search in (("right", race.right), ("wrong", race.wrong)):
            try:
                catalogue.check(search())
            except AssertionError as found:
                print(f"{name:15}{side:7}{found}")
            else:
                print(f"{name:15}{side:7}passes")
