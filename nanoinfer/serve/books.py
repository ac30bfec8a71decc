"""What became of all requests, and how long their tokens took: the numbers behind `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import sub
from typing import Literal, Protocol

Outcome = Literal["finished", "cancelled", "refused", "failed"]
STEPS = (1, 2.5, 5)
SECONDS = tuple(step * 10**power for power in range(-4, 3) for step in STEPS)  # upper ends of the histograms' buckets
_bucket = partial(bisect_left, SECONDS)


class Timed(Protocol):
    """A row, as far as its times go."""

    asked: float
    times: list[float]


class Histogram:
    """How many values lie below each of SECONDS; the last count is of those above all."""

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(SECONDS) + 1), 0.0

    def add(self, seconds: Sequence[float]) -> None:
        for bucket, count in Counter(map(_bucket, seconds)).items():
            self.counts[bucket] += count
        self.sum += sum(seconds)


@dataclass
class Books:
    """What became of all requests: submitted == finished + cancelled + refused + failed + those that are served."""

    submitted: int = 0
    ended: dict[Outcome, int] = field(
        default_factory=lambda: {"finished": 0, "cancelled": 0, "refused": 0, "failed": 0}
    )
    prompt_tokens: int = 0  # of requests that the engine was given
    new_tokens: int = 0
    ttft: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)

    def enter(self, rows: Sequence[Timed]) -> None:
        """The times of rows that have ended, however they did: by the engine's clock, so pieces play no part."""
        for row in rows:
            if row.times:
                self.ttft.add([row.times[0] - row.asked])
                self.itl.add([*map(sub, row.times[1:], row.times)])
