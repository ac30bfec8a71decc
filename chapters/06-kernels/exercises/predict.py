"""What to guess in chapter 6 before it is measured: in a few seconds, on a CPU or a GPU."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from nanocourse.exercises.chapters import run_file
from nanocourse.learner.predict import Prediction

C, INNER, FEW, MANY = 1600, 6400, 16, 256
REPEATS = 15
SMALL = run_file(Path(__file__).parents[1] / "small.py", "nanoinfer_ch06_small_predicted")


def product(rows: int, device: torch.device) -> float:
    """Median seconds of a product of so many rows with a matrix as it stands in gpt2-xl."""
    weight, x = torch.randn(INNER, C, device=device), torch.randn(rows, C, device=device)
    seconds = []
    for _ in range(REPEATS + 3):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[3:])


def few(device: torch.device) -> float:
    """A few rows over one."""
    return product(FEW, device) / product(1, device)


def many(device: torch.device) -> float:
    """Many rows over one."""
    return product(MANY, device) / product(1, device)


def reading_alone(device: torch.device) -> float:
    """If the weights are read once, whatever is computed with them."""
    return 1.0


def arithmetic_alone(device: torch.device) -> float:
    """If a row takes as long as the first one."""
    return float(MANY)


def sender() -> Any:
    """Two words, one after the other."""
    yield "store", "data", 7
    yield "store", "flag", 1


def receiver() -> Any:
    """The flag, and then the data."""
    yield "load", "flag"
    yield "load", "data"


def orders(device: torch.device) -> float:
    """Orders that small.py tries for two programs of two accesses each."""
    tried = SMALL.search([sender, receiver], [None, None])[1]
    return float(tried)


def at_once(device: torch.device) -> float:
    """Two of four places are the sender's: 4! / (2! * 2!)."""
    return 6.0


def _few(bound: float, measured: float) -> str:
    if measured > 4:
        return "on this machine arithmetic is not free: a CPU multiplies about as slowly as it reads"
    return (
        "the weights are read once for all rows; a little is left for rows, and another kernel may be chosen for them"
    )


def _many(bound: float, measured: float) -> str:
    return "one row waits for the weights; many rows share that wait, and use the machine's arithmetic at last"


def _orders(bound: float, measured: float) -> str:
    return (
        "each store is two events, it is made and it arrives, and arrivals change places with all else, each other too"
    )


PREDICTIONS = (
    Prediction(
        "few rows", f"A matrix of {INNER} x {C} times {FEW} rows. How many times as long as times one row?", "times",
        reading_alone, "reading the weights once, and nothing else", few, _few,
    ),
    Prediction(
        "many rows", f"The same matrix times {MANY} rows. How many times as long as times one row?", "times",
        arithmetic_alone, "arithmetic, and nothing else", many, _many,
    ),
    Prediction(
        "orders", "One program stores two words, another one loads them. In how many orders can that happen?", "orders",
        at_once, "stores that arrive at once: two accesses of four are the sender's", orders, _orders,
    ),
)  # fmt: skip
