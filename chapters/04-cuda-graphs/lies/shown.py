"""What graphs-that-lied.md shows: each lie's output by its name, the story, the tables, and the marks of a test."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanocourse.exercises.chapters import run_folder

lies = run_folder(Path(__file__).resolve().parent)
catalogue, running, report, marking = map(lies, ("catalogue", "running", "report", "marking"))
NOT_YET = "not yet run on a GPU"


@functools.cache
def told(name: str) -> Any:
    """What came of one lie by the stand-in."""
    return running.in_this_process(name, "cpu")


def __getattr__(name: str) -> Callable[[], None]:
    """A function for each lie: `warm_up` is the one called warm-up."""
    lie = name.replace("_", "-")
    if lie not in catalogue.LIES:
        raise AttributeError(name)
    return functools.partial(show, lie)


def show(name: str) -> None:
    """A lie's outputs, one line a side if they fit."""
    found = told(name)
    for side, label in (("truth", "eager"), ("right", "right graph"), ("wrong", "wrong graph")):
        cost = found.costs.get(side)
        lines = [*map(running.quoted, found.sides[side]), *([] if cost is None else [f"{cost:.0f} operations"])]
        print(textwrap.fill("   ".join(lines), 110, initial_indent=f"{label:13}", subsequent_indent=" " * 13))


def story() -> None:
    """The opening story by the stand-in."""
    show("story")


def attentions() -> None:
    """What the wrong graph of the story lacks."""
    found = running.attentions()
    print(f"launches of attention in a replay: {found['right']} in the right graph, {found['wrong']} in the wrong one")


def times() -> None:
    """What a step of the story takes, where it was measured."""
    measured = report.measured()
    costs = {one.name: one.costs for one in measured.told}.get("story", {}) if measured else {}
    if not costs:
        print(f"{NOT_YET}: {report.COMMAND}")
        return
    print(f"one step on {measured.machine.device}: ", end="")
    told_costs = {side: f"{costs[side] * 1e6:.0f} µs" for side in costs}
    print(f"called {told_costs['truth']}, right graph {told_costs['right']}, wrong graph {told_costs['wrong']}")


def agreement() -> None:
    """Every lie by the stand-in and by a real graph."""
    measured = report.measured()
    real = {one.name: one for one in measured.told} if measured else {}
    print(f"{'lie':13}{'entry':7}{'stand-in':26}real graph" + (f" on {measured.machine.device}" if measured else ""))
    for lie in catalogue.LIES.values():
        here = "cannot be run" if lie.gpu else told(lie.name).verdict
        there = real[lie.name].verdict if lie.name in real else NOT_YET
        print(f"{lie.name:13}{lie.entry or '-':7}{here:26}{there}")


def real() -> None:
    """Where a real graph told otherwise than the stand-in, or the cost of a replay is the point."""
    measured = report.measured()
    if measured is None:
        print(f"{NOT_YET}: {report.COMMAND}")
        return
    same = 0
    for one in measured.told:
        lie = catalogue.LIES.get(one.name)
        here = {} if lie is None or lie.gpu else told(one.name).sides
        if one.sides == here and not one.costs:
            same += 1
            continue
        for side in ("right", "wrong"):
            lines = [running.quoted(line) for line in one.sides.get(side, [])]
            lines += [f"{one.costs[side] * 1e6:.1f} µs"] if side in one.costs else []
            label = f"{one.name if side == 'right' else '':13}{side:7}"
            print(textwrap.fill("   ".join(lines), 110, initial_indent=label, subsequent_indent=" " * 20))
    print(f"the other {same} told the same to the letter")


def differences() -> None:
    """Where a real graph is otherwise than the stand-in."""
    for lie in catalogue.LIES.values():
        if lie.differs:
            print(textwrap.fill(lie.differs, 110, initial_indent=f"{lie.name:13}", subsequent_indent=" " * 13))


def marks() -> None:
    """What the marker says of the reference, and of a test that many would write first."""
    frozen = lies("frozen")

    def first(make: Callable[..., Any]) -> None:
        assert frozen.several_steps(make) == frozen.several_steps(functools.partial(make, graphs=False))

    for label, check in (("one row, ten letters", first), ("reference.py", lies("reference").check)):
        found = marking.marks(check)
        wronged = sum(name in marking.RIGHT for name in found)
        missed = [name for name in found if name in marking.LIARS]
        print(f"{label}: {len(marking.RIGHT) - wronged} of {len(marking.RIGHT)} right engines pass, "
              f"{len(marking.LIARS) - len(missed)} of {len(marking.LIARS)} liars are caught")  # fmt: skip
        if missed:
            print(textwrap.fill(f"  missed: {', '.join(missed)}", 110, subsequent_indent="    "))
