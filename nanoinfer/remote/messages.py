"""What an engine's process and the one that started it tell each other: a frozen dataclass a message.

Rows have numbers, and never the same one twice, so news of a row that was cancelled meanwhile are news of nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanoinfer.engine.stats import Gauges, Stats

if TYPE_CHECKING:
    from pathlib import Path

    from nanoinfer.parallel.processes import Raised
    from nanoinfer.records import FinishReason
    from nanoinfer.requests import Request


# To the engine


@dataclass(frozen=True)
class Start:
    """Make it: kind(model, revision=revision, **settings). The first message; `Facts` answer it, or `Raised`."""

    kind: Callable[..., Any]
    model: str | Path | None
    revision: str | None
    settings: dict[str, Any]


@dataclass(frozen=True)
class Submit:
    """Let requests run; the index of each is its row's number. known: tokens that another engine has made of it."""

    requests: Sequence[Request]
    known: Sequence[Sequence[int]]
    asked: float
    every_token: bool


@dataclass(frozen=True)
class Cancel:
    """Let rows leave."""

    numbers: Sequence[int]


@dataclass(frozen=True)
class Pace:
    """Let no step begin sooner than so many seconds after the one before."""

    seconds: float


@dataclass(frozen=True)
class Watch:
    """Tell this listener what each step does; None ends it."""

    listener: int | None
    texts: bool


@dataclass(frozen=True)
class WarmUp:
    """Capture every step; tell this listener how many of how many are done, and at the end None or `Raised`."""

    listener: int


# From the engine

# Of a row: its number, its new tokens, when each came, when it got a row, their logprobs and, the first time, its
# prompt's; why it has ended, or what failed in it alone. A plain tuple, since each step brings one of every row: a
# NamedTuple takes pickle four times as long, and a dataclass five times.
Scores = Sequence[list[float]]
RowNews = tuple[int, list[int], list[float], float, Scores, Scores, "FinishReason | None", "str | None"]


@dataclass(frozen=True)
class News:
    """What is new of all rows since the last message. failure: of a step, which has ended them all."""

    rows: Sequence[RowNews]
    failure: Raised | None
    stats: Stats
    gauges: Gauges


@dataclass(frozen=True)
class Told:
    """What a listener is to hear."""

    listener: int
    what: Any
