"""What guesses-that-lied.md shows: each text without guesses, with them, and with them and the mistake."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from nanobook.examples import load

lies = load(Path(__file__).with_name("loading.py")).lies
catalogue, toy = lies("catalogue"), lies("toy")


def __getattr__(name: str) -> Callable[[], None]:
    """A function for each lie: `next_row` is the one called next-row."""
    lie = name.replace("_", "-")
    if lie not in catalogue.LIES:
        raise AttributeError(name)
    return functools.partial(show, lie)


def lines(name: str) -> list[str]:
    """The text with guesses, a bar between steps, by the right decoder and by the wrong one; and without guesses."""
    lie = catalogue.LIES[name]
    found = []
    for side, kind in (("right", toy.Decoder), ("wrong", lie.wrong)):
        found.append(f"{side}, no guesses   {catalogue.plain(lie.asked, kind)}")
        found.append(f"{side}               {'|'.join(catalogue.with_guesses(lie.asked, kind)[1])}")
    return found


def show(name: str) -> None:
    """Print them."""
    print("\n".join(lines(name)))


def verdicts() -> None:
    """What the test says of each."""
    for name, kind in {"the right one": toy.Decoder, **{n: lie.wrong for n, lie in catalogue.LIES.items()}}.items():
        try:
            catalogue.check(kind)
        except AssertionError as found:
            print(f"{name:21}{found}")
        else:
            print(f"{name:21}passes")
