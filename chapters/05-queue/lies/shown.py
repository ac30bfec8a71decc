"""What queues-that-starved.md shows: each scene in the right queue and in the wrong one, and the marks of a test."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanobook.examples import load

lies = load(Path(__file__).with_name("loading.py")).lies
catalogue, toy = lies("catalogue"), lies("toy")


def __getattr__(name: str) -> Callable[[], None]:
    """A function for each lie: `stale_map` is the one called stale-map."""
    lie = name.replace("_", "-")
    if lie not in catalogue.LIES:
        raise AttributeError(name)
    return functools.partial(show, lie)


def show(name: str) -> None:
    """A scene's lines on both sides; requests by the order in which they came."""
    lie: Any = catalogue.LIES[name]
    for side, kind in (("right queue", toy.Queue), ("wrong queue", lie.wrong)):
        for at, line in enumerate(lie.scene(kind)):
            print(f"{side if at == 0 else '':13}{line}".rstrip())


def contents() -> None:
    """All that there are."""
    for name, lie in catalogue.LIES.items():
        print(f"{name:15}{', '.join(lie.threads)}")
