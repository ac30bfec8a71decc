"""The results file of the lies: what was told on which machine. Read for the table of graphs-that-lied.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field

from nanobench.core.machine import stamp
from nanobench.core.records import Record, ResultsFile

from .running import Told

RESULTS = Path(__file__).resolve().parents[3] / "bench" / "results"
NAME = "h200-lies.json"
COMMAND = f"python chapters/04-cuda-graphs/lies --device cuda --json bench/results/{NAME}"


class Lied(Record):
    """One lie on that device. costs: seconds of a replay, where they are the point."""

    name: str
    verdict: str
    as_expected: bool
    sides: dict[str, list[str]]
    costs: dict[str, float] = Field(default_factory=dict)
    error: str = ""


class LiesReport(ResultsFile):
    """One run of `python chapters/04-cuda-graphs/lies --json`."""

    kind: Literal["lies"] = "lies"
    told: tuple[Lied, ...]


def save(told: Sequence[Told], device: str, path: Path) -> None:
    """Write what was told to a file."""
    lied = tuple(
        Lied(name=one.name, verdict=one.verdict, as_expected=one.expected(device), sides=one.sides, costs=one.costs,
             error=one.error[-300:].rpartition("\n")[2])
        for one in told
    )  # fmt: skip
    LiesReport(told=lied, **stamp(torch.device(device))).save(path)


def measured(path: Path = RESULTS / NAME) -> LiesReport | None:
    """The results file; None where the lies have not been run on a GPU yet."""
    found = LiesReport.load(path) if path.is_file() else None
    return found if found is not None and found.machine.kind == "cuda" else None
