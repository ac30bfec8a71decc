"""Running lies, and what is written down of it: by the stand-in in this process, by real graphs each in one of its own.

A lie may break the device for its process: a failed capture, or memory that is no longer there. So a process tells
each side as it has it, and what does not come back is taken for a death.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import story
from .catalogue import LIES, Lie
from .recorders import StandIn, recorder_for
from .step import LETTERS

SIDES = ("truth", "right", "wrong")
STORY = "story"  # the opening, with the model that ships
SLOWER = 3.0  # times a replay of a lie about speed costs at least, of a right one's
LIMIT_S = 240.0  # of one process
COUNT, TURNS = 100, 7  # replays that are timed together, and how often


@dataclass
class Told:
    """What came of one lie. costs: of a replay, seconds on a GPU, operations by the stand-in; of few lies alone."""

    name: str
    sides: dict[str, list[str]] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    error: str = ""
    untimed: bool = False  # it told all three sides, and died when it was timed

    @property
    def lied(self) -> bool:
        """Whether the wrong one told otherwise, or the same at a much higher cost."""
        lie = LIES.get(self.name)
        if lie is not None and lie.costs:
            return self.costs.get("wrong", 0.0) > SLOWER * self.costs.get("right", 0.0) > 0.0
        return self.sides.get("wrong") != self.sides.get("truth")

    @property
    def held(self) -> bool:
        """Whether the right one told the truth."""
        return "truth" in self.sides and self.sides.get("right") == self.sides["truth"]

    @property
    def verdict(self) -> str:
        """In words."""
        return ("lied" if self.lied else "told the truth") if self.held else "the right one lied"

    def expected(self, device: str) -> bool:
        """Whether that is what the page says of it."""
        lie = LIES.get(self.name)
        if self.untimed:
            return False
        shown = lie is None or (lie.shown if device == "cpu" else True)
        uncertain = lie is not None and device == "cuda" and not lie.certain
        return self.held and (uncertain or self.lied == shown)


def names(device: str) -> list[str]:
    """What can be run there, the opening story first."""
    return [STORY, *(name for name, lie in LIES.items() if device == "cuda" or not lie.gpu)]


def tell(name: str, device: str) -> Iterator[tuple[str, Any]]:
    """Run one lie in this process: each side as it comes, and "costs"."""
    recorder = recorder_for(device)
    if name == STORY:
        yield from ((side, [text]) for side, text in story.texts(recorder, device).items())
        yield "costs", {side: cost(step) for side, step in timed(recorder, device).items()}
        return
    lie: Lie = LIES[name]
    costs = {}
    for side in SIDES:
        lines, graph = lie.run(side, recorder, device)
        yield side, lines
        if lie.costs and graph is not None:
            costs[side] = cost(graph.replay) if device == "cuda" else float(len(graph.operations))
    yield "costs", costs


def timed(recorder: Any, device: str) -> dict[str, Callable[[], object]]:
    """The steps of the story that are timed: on a GPU alone."""
    return story.steps(recorder, device) if device == "cuda" else {}


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
    told = Told(name)
    for part, value in tell(name, device):
        if part == "costs":
            told.costs = value
        else:
            told.sides[part] = value
    return told


def in_a_process_of_its_own(name: str, device: str) -> Told:
    """Run one lie in a fresh process, whose death is told as the wrong side's output."""
    command = [sys.executable, str(Path(__file__).parent), "--device", device, "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        output, errors = done.stdout, done.stderr.strip()
    except subprocess.TimeoutExpired as hung:
        output, errors = (hung.stdout or b"").decode(), f"no end after {LIMIT_S:.0f} s"
    parts = {part["part"]: part["value"] for part in map(json.loads, filter(is_part, output.splitlines()))}
    told = Told(name, {side: parts[side] for side in SIDES if side in parts}, parts.get("costs", {}))
    if missing := [part for part in (*SIDES, "costs") if part not in parts]:
        told.error = errors[-2000:] or "it ended without a word"
        if missing == ["costs"]:
            told.untimed = True
        else:
            told.sides[missing[0]] = ["the process died: " + told.error.splitlines()[-1]]
    return told


def is_part(line: str) -> bool:
    """Whether a line is something that was told, and no library's remark."""
    return line.startswith('{"part": ')


def run(wanted: Sequence[str], device: str, on_told: Callable[[Told], object]) -> list[Told]:
    """Run these, those that are timed by themselves. on_told: called with each as it is there."""

    def one(name: str) -> Told:
        told = in_this_process(name, device) if device == "cpu" else in_a_process_of_its_own(name, device)
        on_told(told)
        return told

    quiet = [name for name in wanted if name == STORY or LIES[name].costs]
    others = [name for name in wanted if name not in quiet]
    with ThreadPoolExecutor(1 if device == "cpu" else 4) as pool:
        found = {told.name: told for told in [*pool.map(one, others), *map(one, quiet)]}
    return [found[name] for name in wanted]


def quoted(line: str) -> str:
    """A line as it is printed: texts in quotation marks, so that spaces at their ends are seen."""
    is_text = set(line) <= set(LETTERS) or (" " in line and line[:4] == story.PROMPT[:4])
    return '"' + line.replace("\n", "\\n") + '"' if is_text else line


def attentions() -> dict[str, int]:
    """Launches of attention in the story's graphs, as the stand-in counts them."""
    return story.attentions(StandIn())
