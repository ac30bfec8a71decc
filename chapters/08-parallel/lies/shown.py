"""What ranks-that-disagreed.md shows: the texts of one rank, of two right ones, and of two that disagree."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from nanobook.examples import load

lies = load(Path(__file__).with_name("loading.py")).lies
catalogue, toy = lies("catalogue"), lies("toy")


def __getattr__(name: str) -> Callable[[], None]:
    """A function for each lie: `own_dice` is the one called own-dice."""
    lie = name.replace("_", "-")
    if lie not in catalogue.LIES:
        raise AttributeError(name)
    return functools.partial(show, lie)


def lines(name: str) -> list[str]:
    """The texts side by side, and how a rank has ended that has not done its work."""
    lie = catalogue.LIES[name]
    found = [f"one rank        {' | '.join(catalogue.one_rank(lie.asked, min(lie.rooms)))}"]
    for side, kind in (("right", toy.Rank), ("wrong", lie.wrong)):
        for rank, told in enumerate(lie.told(kind)):
            end = f" | {told.end}" if told.end else ""
            found.append(f"{side}, rank {rank}   {' | '.join(told.texts)}{end}".rstrip())
    return found


def show(name: str) -> None:
    """Print them."""
    print("\n".join(lines(name)))


def verdicts() -> None:
    """What the test says of each."""
    for name, kind in {"the right one": toy.Rank, **{n: lie.wrong for n, lie in catalogue.LIES.items()}}.items():
        try:
            catalogue.check(kind)
        except AssertionError as found:
            print(f"{name:15}{found}")
        else:
            print(f"{name:15}passes")
