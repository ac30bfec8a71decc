"""Plays all ranks in one thread: each goes on by one moment at a time, and who is late is drawn from a seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from .toy import Asked, Rank, text


class Told(NamedTuple):
    """Of one rank: each text, as far as it came, and how the rank has ended; "" where it has done all of its work."""

    texts: list[str]
    end: str


Make = Callable[[int, int, int, dict[Any, Any]], Rank]


def play(make: Make, rooms: Sequence[int], asked: Sequence[Asked], luck: int = 0) -> list[Told]:
    """What each rank has told in the end. rooms: blocks of each. luck: who comes late, and when."""
    shared: dict[Any, Any] = defaultdict(int)
    ranks = [make(rank, len(rooms), room, shared) for rank, room in enumerate(rooms)]
    programs = {rank: made.run(asked) for rank, made in enumerate(ranks)}
    waits: dict[int, Callable[[], bool] | None] = dict.fromkeys(programs)
    ends, random = ["waits for ever"] * len(ranks), Random(luck)
    while ready := [rank for rank in programs if waits[rank] is None or waits[rank]()]:  # type: ignore[misc]
        rank = random.choice(ready)
        try:
            waits[rank] = next(programs[rank])
        except StopIteration:
            ends[rank] = ""
            del programs[rank]
        except IndexError:
            ends[rank] = "wrote outside of its cache"
            del programs[rank]
    return [Told(texts(rank), end) for rank, end in zip(ranks, ends, strict=True)]


def texts(rank: Rank) -> list[str]:
    """All of a rank's texts, those that have not ended too."""
    every = rank.texts | {name: text(row) for name, row in rank.rows.items()}
    return [every.get(name, "") for name in range(len(rank.asked))]
