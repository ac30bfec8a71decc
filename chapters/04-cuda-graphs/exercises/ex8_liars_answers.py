"""Exercise 4.8: wrong answers (tests that see too little or too much), correct ones, mutants, an edition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed, NoVerdict

Make = Callable[..., Any]


def side_by_side(make: Make) -> None:
    """Both engines at once, step by step; results are looked at when everything is over."""
    both = make(fill=float("nan")), make(graphs=False, fill=float("nan"))
    results: list[list[Any]] = [[], []]

    def step() -> None:
        for engine, result in zip(both, results, strict=True):
            result.append(engine.step())

    for turn in range(2):
        for at, word in enumerate(("fox ", "crane ", "ox ", "lark ", "hen ", "dawn ")):
            for engine in both:
                engine.admit(word, 5.0 * turn, seed=turn * at)
            step()
        for engine in both:
            for _ in range(4):
                engine.release(0)
            engine.admit("abracadabra ")
        for _ in range(6):
            step()
        assert both[0].texts() == both[1].texts()
        for engine in both:
            engine.reset()
    for one, other in zip(*results, strict=True):
        assert one.equal(other)
    assert both[0].missed == 0


def one_long_day(make: Make) -> None:
    """Events in a string: who comes, who leaves, and steps; two lists of numbers are compared."""

    def day(engine: Any) -> list[Any]:
        seen: list[Any] = []
        for turn in (2, 1):
            words = iter(["fox ", "wolf ", "he ", "owl ", "crow ", "ape ", "abracadabra "])
            for event in "+.+.+.+.+.+.----+.....!":
                if event == "+":
                    engine.admit(next(words), 3.5 * turn * (turn != 2), turn)
                elif event == "-":
                    engine.release(0)
                elif event == "!":
                    engine.reset()
                else:
                    seen.append(engine.step())
        return [number for letters in seen for number in letters.tolist()]

    engine = make(fill=float("nan"))
    if day(engine) != day(make(graphs=False)) or engine.missed > 0:
        raise AssertionError("another day")


_OTHER = "another choice of rows, steps and parameters, which meets the same situations"
EQUIVALENT = {
    "engine.admit(word, seed, heat)": _OTHER,
    "engine.release(-1)": _OTHER,
    "engine.release(1)": _OTHER,
    "for seed, heat in enumerate([0.0, 2.0]):": _OTHER,
    "for seed, heat in enumerate([0.0, 8.0]):": _OTHER,
    "kept += [engine.step() for _ in range(4)]": _OTHER,
    "kept += [engine.step() for _ in range(6)]": _OTHER,
}


def _two_kinds(make: Make) -> tuple[Make, Make]:
    return partial(make, graphs=True), partial(make, graphs=False)


def _raised(right: bool, *args: object) -> None:
    if right is not True and right is not False:
        raise NoVerdict(TypeError(f"the result is True or False, and no {type(right).__name__}"))
    if not right:
        raise AssertionError("it says that the engine is wrong")


def _by_verdict(answer: Function) -> Function:
    return Formed(answer, _two_kinds, _raised)


@edition(
    "true-or-false",
    "two functions make engines, with graphs and without, and the answer is True or False: it raises nothing",
    played=_by_verdict,
)
def is_right(graphed: Make, called: Make) -> bool:
    """True if the engines that `graphed` makes are right; False if they are wrong, or break down.

    graphed(): a new engine, which replays graphs. called(): the same one, with every step called from Python; it is
    always right. Both take fill=: what the cache holds before anybody has written to it, 0.0 unless given. An engine
    has six rows at most, and captures a graph where it meets a shape for the first time. A step writes a letter a row:
    the one that followed where its newest letter stood the time before, in the row's own text with a space put before
    it; noise comes on top where it is hot.
    engine.admit(text, temperature=0.0, seed=0): a new row, the last one; a text has two letters at least, of those in
    " abcdefghijklmnopqrstuvwxyz.,'!?", and grows to 31 at most. engine.release(row): the last row moves into its place.
    engine.reset(): all rows end, and the cache is empty. engine.step() -> letters (n,) int64, one for each row, the
    caller's to keep. engine.texts() -> what was admitted and written, by row. engine.missed: how many steps were not
    replayed. What else engines do and hold is their own business.
    """

    def day(engine: Any, heat: float, seed: int) -> list[Any]:
        kept = []
        for word in ("wolf ", "crane ", "ox ", "lark ", "hen ", "bat "):
            engine.admit(word, heat, seed)
            kept.append(engine.step())
        for _ in range(4):
            engine.release(0)
        engine.admit("abracadabra ")
        kept += [engine.step() for _ in range(5)]
        engine.reset()
        return [letters.tolist() for letters in kept]

    try:
        one, other = graphed(fill=float("nan")), called(fill=float("nan"))
        same = all(day(one, heat, seed) == day(other, heat, seed) for seed, heat in enumerate((0.0, 4.0)))
        return same and one.missed == 0
    except Exception:
        return False
