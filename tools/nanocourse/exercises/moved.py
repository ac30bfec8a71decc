"""Exercises that have moved to another chapter, which older folders and assignments call by their old numbers.

A number that stands here is never given to another exercise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Moved(NamedTuple):
    """Where an exercise was in a learner's folder, its number now, and where it is now."""

    was: str
    now: str
    file: str


MOVED = {"2.7": Moved("02-kv-cache/ex7_chunks.py", "5.8", "05-queue/ex8_chunks.py")}


def told(id: str) -> str:
    """One sentence about an exercise that has moved; an empty text for any other."""
    if id not in MOVED:
        return ""
    was, now, file = MOVED[id]
    return f"exercise {id} has moved: it is now {now}, and its file {was} is now {file}"


def renamed(known: Mapping[str, T]) -> dict[str, T]:
    """Whatever is known by exercise, under the numbers of today. Where the new number is taken, the old one stays."""
    now = {id: one.now for id, one in MOVED.items() if one.now not in known}
    return {now.get(id, id): one for id, one in known.items()}
