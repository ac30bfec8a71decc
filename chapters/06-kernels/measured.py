"""Chapter 6's numbers from results files: where a step of chapter 4 spends its time.

`python -m bench timeline --out bench/results/h200-timeline.json` makes the file; `python -m nanobook prose` then fills
the numbers into the text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nanobench.micro.step_breakdown import HEAD, NONE, Part, breakdown
from nanobench.micro.timeline import StepTimeline
from nanobench.report.values import seconds, share
from nanobook.examples import load

four = load(Path(__file__).parents[1] / "04-cuda-graphs" / "measured.py")


def step() -> StepTimeline:
    """A replayed step of one row."""
    found: StepTimeline = four.step_of("paged-graph")
    return found


def parts() -> list[Part]:
    """What it spends its time on."""
    return breakdown(step())


def hundred() -> None:
    """Kernels and time by what they are for, and what a kernel takes on average."""
    print(f"{'':17}{'kernels':>8}{'time':>11}{'a kernel':>11}{'its bytes alone':>18}")
    least = four.floors()
    for part in parts():
        each = seconds(part.seconds / part.kernels) if part.kernels else ""
        alone = seconds(least[part.name]) if part.name in least else ""
        count = part.kernels or ""
        print(f"{part.name:17}{count:>8}{seconds(part.seconds):>11}{each:>11}{alone:>18}".rstrip())
    print(f"{'all':17}{kernels():>8}{seconds(total()):>11}{'':11}{seconds(sum(least.values())):>18}")


def kernels() -> int:
    """Of a step."""
    return sum(part.kernels for part in parts())


def total() -> float:
    """Seconds of a step."""
    return sum(part.seconds for part in parts())


def part(name: str) -> Part:
    """One part of a step."""
    (found,) = [one for one in parts() if one.name == name]
    return found


NUMBERS: dict[str, Callable[[], str]] = {
    "kernels": lambda: str(kernels()),
    "step": lambda: seconds(total()),
    "floor": lambda: seconds(sum(four.floors().values())),
    "share": lambda: share(sum(four.floors().values()) / total()),
    "nothing": lambda: share(part(NONE).share),
    "between": lambda: seconds(part(NONE).seconds / kernels()),
    "head time": lambda: seconds(part(HEAD).seconds),
}
