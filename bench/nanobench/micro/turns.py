"""Two checkouts by turns: how fast generation is after a change, over what it was.

Each checkout runs in a process of its own, `turns_worker.py`, which reads a case a line and answers with tokens a
second. The two take turns, and each turn gives one ratio, so that a slow minute of the machine slows both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

import typer

from nanobench.core.machine import stamp
from nanobench.core.records import Record, ResultsFile
from nanobench.options import Out
from nanoinfer.devices import choose_device

WORKER = Path(__file__).with_name("turns_worker.py")


class Turned(Record):
    """A case, as in `gpt2:fused:8`: medians of tokens a second, and the ratio of each turn, in order of size."""

    case: str
    before: float
    after: float
    ratios: tuple[float, ...]

    SHOWN = ("ratio",)

    @property
    def ratio(self) -> float:
        """The median of the turns'."""
        return median(self.ratios)


class TurnsReport(ResultsFile):
    """One run of `python -m bench turns`."""

    kind: Literal["turns"] = "turns"
    turns: int
    rows: tuple[Turned, ...] = ()


class Checkout:
    """A process that measures cases with the package of one folder."""

    def __init__(self, folder: Path) -> None:
        paths = os.pathsep.join(filter(None, [str(folder.resolve()), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER.read_text(encoding="utf-8")], cwd=folder,
            env=os.environ | {"PYTHONPATH": paths}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def tokens_per_s(self, case: str) -> float:
        """Run a case once. ValueError with what the process said where it could not."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline() or '"its process ended"')
        if isinstance(answer, str):
            raise ValueError(f"{case}: {answer}")
        return float(answer)


def measure(
    before: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A checkout, as it was.")],
    after: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A checkout with the change.")],
    case: Annotated[list[str], typer.Option(help="MODEL:ENGINE:BATCH; 1000 are mixed requests; repeatable.")],
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each checkout.")] = 5,
    out: Out = Path("my-bench/turns.json"),
) -> None:
    """Print and save, for each case, both medians and the median of the turns' ratios, after over before."""
    pair = Checkout(before), Checkout(after)
    rows = (_turned(each, pair, repeats) for each in case)
    TurnsReport(turns=repeats, **stamp(choose_device(None))).fill(out, rows=rows)


def _turned(case: str, pair: tuple[Checkout, Checkout], repeats: int) -> Turned:
    """By turns, each checkout first in every other one. The first, which compiles and captures, is not counted."""
    found: list[tuple[float, float]] = []
    for turn in range(-1, repeats):
        one, other = (checkout.tokens_per_s(case) for checkout in (pair if turn % 2 else pair[::-1]))
        found.append((one, other) if turn % 2 else (other, one))
    old, new = (median(column) for column in zip(*found[1:], strict=True))
    return Turned(case=case, before=old, after=new, ratios=tuple(sorted(new / old for old, new in found[1:])))
