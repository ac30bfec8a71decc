"""Chapter 6's numbers from results files: where a step of chapter 4 spends its time.

`python -m bench timeline --out bench/results/h200-timeline.json` makes the file; `python -m nanobook prose` then fills
the numbers into the text.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

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


def gaps() -> None:
    """How long kernels of that step are, and what stands between two, as the profiler saw them."""
    found = sorted(step().kernels, key=lambda kernel: kernel.start_us)
    lengths = sorted(kernel.duration_us for kernel in found)
    between = sorted(
        max(0.0, after.start_us - before.start_us - before.duration_us) for before, after in pairwise(found)
    )
    print(f"{'':22}{'shortest':>10}{'median':>10}{'longest':>10}{'in all':>10}")
    for name, values in (("a kernel", lengths), ("from one to the next", between)):
        cells = (values[0], median(values), values[-1], sum(values))
        print(f"{name:22}" + "".join(f"{seconds(us / 1e6):>10}" for us in cells))


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
