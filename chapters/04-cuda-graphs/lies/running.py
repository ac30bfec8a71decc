"""Running lies, and what is written down of it: by the stand-in in this process, by real graphs each in one of its own.

A lie may break the device for its process: a failed capture, or memory that is no longer there. So a process tells
each side as it has it, and what does not come back is taken for a death.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import textwrap
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from nanobench.core.records import Record, ResultsFile

from . import catalogue
from .catalogue import Lie
from .recorders import recorder_for
from .step import LETTERS
from .story import PROMPT, Story

SIDES = ("truth", "right", "wrong")
LIES = ChainMap(catalogue.LIES, {"story": Lie("story", "", (), Story, timed=("cuda",))})  # the opening comes first
SLOWER = 3.0  # times a replay of a lie about speed costs at least, of a right one's
LIMIT_S = 240.0  # of one process
COUNT, TURNS = 100, 7  # replays that are timed together, and how often
RESULTS = Path(__file__).resolve().parents[3] / "bench" / "results"
NAME = "h200-lies.json"
COMMAND = f"python chapters/04-cuda-graphs/lies --device cuda --json bench/results/{NAME}"


class Told(Record):
    """What came of one lie. costs: of a replay, seconds on a GPU, operations by the stand-in; of few lies alone."""

    name: str
    verdict: str
    as_expected: bool
    sides: dict[str, list[str]]
    costs: dict[str, float] = Field(default_factory=dict)
    error: str = ""

    def shown(self, side: str) -> list[str]:
        """One side's lines, and its cost: texts in quotation marks, so that spaces at their ends are seen."""
        lines = []
        for line in self.sides.get(side, []):
            is_text = set(line) <= set(LETTERS) or (" " in line and line[:4] == PROMPT[:4])
            lines.append('"' + line.replace("\n", "\\n") + '"' if is_text else line)
        if cost := self.costs.get(side):
            lines.append(f"{cost:.0f} operations" if cost >= 1 else f"{cost * 1e6:.1f} µs")
        return lines


class LiesReport(ResultsFile):
    """One run of `python chapters/04-cuda-graphs/lies --json`."""

    kind: Literal["lies"] = "lies"
    told: tuple[Told, ...]


def measured(path: Path = RESULTS / NAME) -> LiesReport | None:
    """The results file; None where the lies have not been run on a GPU yet."""
    found = LiesReport.load(path) if path.is_file() else None
    return found if found is not None and found.machine.kind == "cuda" else None


def judged(name: str, device: str, parts: dict[str, Any], error: str = "") -> Told:
    """What is told of a lie by its sides and their costs, and whether the page says so. error: of a process's death.

    Without costs, all three sides came, and it died when it was timed: that is no success.
    """
    sides, costs = {side: parts[side] for side in SIDES if side in parts}, parts.get("costs", {})
    lied = sides.get("wrong") != sides.get("truth") or costs.get("wrong", 0) > SLOWER * costs.get("right", 0) > 0
    held = "truth" in sides and sides.get("right") == sides["truth"]
    verdict = ("lied" if lied else "told the truth") if held else "the right one lied"
    lie, timed = LIES[name], "costs" in parts
    expected = held and timed and (lied == (device == "cuda" or lie.shown) or not (device == "cpu" or lie.certain))
    return Told(name=name, verdict=verdict, as_expected=expected, sides=sides, costs=costs, error=error)


def names(device: str) -> list[str]:
    """What can be run there."""
    return [name for name, lie in LIES.items() if device == "cuda" or not lie.gpu]


def tell(name: str, device: str) -> Iterator[tuple[str, Any]]:
    """Run one lie in this process: each side as it comes, and "costs"."""
    lie, recorder, costs = LIES[name], recorder_for(device), {}
    for side in SIDES:
        lines, made = lie.run(side, recorder, device)
        yield side, lines
        if device in lie.timed and (again := getattr(made, "again", None)):
            costs[side] = cost(again) if device == "cuda" else float(len(made.graph.operations))
    yield "costs", costs


def cost(step: Callable[[], object]) -> float:
    """Seconds of one of many calls in a row, median of some turns."""
    seconds = []
    for _ in range(TURNS + 1):  # the first turn is not counted
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(COUNT):
            step()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000 / COUNT)
    return statistics.median(seconds[1:])


def in_this_process(name: str, device: str) -> Told:
    """Run one lie here."""
    return judged(name, device, dict(tell(name, device)))


def in_a_process_of_its_own(name: str, device: str) -> Told:
    """Run one lie in a fresh process, whose death is told as the wrong side's output."""
    command = [sys.executable, str(Path(__file__).parent), "--device", device, "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        output, errors = done.stdout, done.stderr.strip()
    except subprocess.TimeoutExpired as hung:
        output, errors = (hung.stdout or b"").decode(), f"no end after {LIMIT_S:.0f} s"
    told = [json.loads(line) for line in output.splitlines() if line.startswith('{"part": ')]  # no library's remark
    parts, error = {part["part"]: part["value"] for part in told}, ""
    if missing := [part for part in (*SIDES, "costs") if part not in parts]:
        error = errors[-2000:] or "it ended without a word"
        if missing[0] in SIDES:
            parts |= {missing[0]: ["the process died: " + error.splitlines()[-1]], "costs": {}}
    return judged(name, device, parts, error)


def run(wanted: Sequence[str], device: str, on_told: Callable[[Told], object]) -> list[Told]:
    """Run these, those that are timed by themselves. on_told: called with each as it is there."""

    def one(name: str) -> Told:
        told = in_this_process(name, device) if device == "cpu" else in_a_process_of_its_own(name, device)
        on_told(told)
        return told

    quiet = [name for name in wanted if LIES[name].timed]
    others = [name for name in wanted if name not in quiet]
    with ThreadPoolExecutor(1 if device == "cpu" else 4) as pool:
        found = {told.name: told for told in [*pool.map(one, others), *map(one, quiet)]}
    return [found[name] for name in wanted]


def fill(label: str, text: str, indent: int = 13) -> None:
    """Print a label and a text beside it, wrapped."""
    print(textwrap.fill(text, 110, initial_indent=f"{label:{indent}}", subsequent_indent=" " * indent))
