"""What graphs-that-lied.md shows: each lie's output by its name, the story, the tables, and the marks of a test."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanocourse.exercises.chapters import run_folder

lies = run_folder(Path(__file__).resolve().parent)
running, marking = lies("running"), lies("marking")
LIES, fill = lies("catalogue").LIES, running.fill
MEASURED = running.measured()
NOT_YET = "not yet run on a GPU"


@functools.cache
def told(name: str) -> Any:
    """What came of one lie by the stand-in."""
    return running.in_this_process(name, "cpu")


def __getattr__(name: str) -> Callable[[], None]:
    """A function for each lie: `warm_up` is the one called warm-up."""
    lie = name.replace("_", "-")
    if lie not in running.LIES:
        raise AttributeError(name)
    return functools.partial(show, lie)


def show(name: str) -> None:
    """A lie's outputs, one line a side if they fit."""
    for side, label in (("truth", "eager"), ("right", "right graph"), ("wrong", "wrong graph")):
        fill(label, "   ".join(told(name).shown(side)))


def attentions() -> None:
    """What the wrong graph of the story lacks."""
    found = lies("story").attentions(running.recorder_for("cpu"))
    print(f"launches of attention in a replay: {found['right']} in the right graph, {found['wrong']} in the wrong one")


def times() -> None:
    """What a step of the story takes, where it was measured."""
    costs = next((one.costs for one in MEASURED.told if one.name == "story"), {}) if MEASURED else {}
    if not costs:
        print(f"{NOT_YET}: {running.COMMAND}")
        return
    called, right, wrong = (f"{costs[side] * 1e6:.0f} µs" for side in running.SIDES)
    print(f"one step on {MEASURED.machine.device}: called {called}, right graph {right}, wrong graph {wrong}")


def agreement() -> None:
    """Every lie by the stand-in and by a real graph."""
    real = {one.name: one.verdict for one in MEASURED.told} if MEASURED else {}
    print(f"{'lie':13}{'entry':7}{'stand-in':26}real graph" + (f" on {MEASURED.machine.device}" if MEASURED else ""))
    for lie in LIES.values():
        here = "cannot be run" if lie.gpu else told(lie.name).verdict
        print(f"{lie.name:13}{lie.entry or '-':7}{here:26}{real.get(lie.name, NOT_YET)}")


def real() -> None:
    """Where a real graph told otherwise than the stand-in, or the cost of a replay is the point."""
    if MEASURED is None:
        print(f"{NOT_YET}: {running.COMMAND}")
        return
    same = 0
    for one in MEASURED.told:
        if not (one.costs or running.LIES[one.name].gpu) and one.sides == told(one.name).sides:
            same += 1
            continue
        for side in ("right", "wrong"):
            fill(f"{one.name if side == 'right' else '':13}{side}", "   ".join(one.shown(side)), 20)
    print(f"the other {same} told the same to the letter")


def differences() -> None:
    """Where a real graph is otherwise than the stand-in."""
    for lie in LIES.values():
        if lie.differs:
            fill(lie.name, lie.differs)


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
            fill("  missed: ", ", ".join(missed), 4)
