"""Guess, then measure: a learner's guess, a bound from arithmetic, and the measurement, side by side.

A chapter's `predict.py` declares PREDICTIONS. Guesses are kept in the learner's folder, and the factor by which they
miss is the learner's calibration. None of it counts for marks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nanocourse.exercises.chapters import Chapter, run_file


@dataclass(frozen=True)
class Prediction:
    """One thing to guess.

    bound: what arithmetic gives, without running anything. bound_says: how that number is computed. measure: the
    number, on a device; takes a few seconds. why: where the difference comes from, given bound and measurement.
    """

    id: str
    question: str
    unit: str
    bound: Callable[[torch.device], float]
    bound_says: str
    measure: Callable[[torch.device], float]
    why: Callable[[float, float], str]


def seconds(run: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """The median of several runs, after one that is not counted."""
    found = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def predictions(chapter: Chapter) -> tuple[Prediction, ...]:
    """What a chapter asks to guess; empty if it has nothing."""
    path, found = chapter.exercises / "predict.py", tuple[Prediction, ...]()
    if path.is_file():
        found = run_file(path, f"nanoinfer_ch{chapter.number:02d}_predict").PREDICTIONS
    return found


def factor(guess: float, measured: float) -> float:
    """By what factor a guess was too large or too small: 1 is exact, 2 is half or double."""
    return max(guess / measured, measured / guess)


def calibration(kept: Sequence[dict[str, Any]]) -> float | None:
    """The median factor by which the guesses so far missed; None before the first."""
    factors = [factor(float(one["guess"]), float(one["measured"])) for one in kept]
    return statistics.median(factors) if factors else None


def parse_guess(text: str) -> float:
    """A guess as it was typed: a number above 0, with commas in it or an x behind it, if any. ValueError otherwise."""
    try:
        number = float(text.strip().rstrip("x× ").replace(",", ""))
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"an answer must be a number above 0, not {text.strip()!r}")
    return number
