"""Exercise 4.4: the batch sizes that are captured, and which of them a batch is padded to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, beside, call
from nanoinfer.engine.graphs import pick

places = beside(__file__, "places.py")


def ladder_and_picks(maximum: int, batches: list[int]) -> tuple[list[int], list[int | None]]:
    """The batch sizes that are captured, rising, and for each of `batches` the one whose graph it goes through.

    A batch is its number of rows, at least 1.
    The sizes are 1, 2, 4 and 8; from there on each is larger than the one before by an eighth of the first power of two
    above that one, but by 8 at least. None is above `maximum`, the most rows that may ever run, a million at most, and
    it is itself the last; with a maximum of 0 there are none. A batch goes through the smallest size that holds it: the
    rows between are padding. None stands for a batch that no size holds: it runs without a graph.
    """
    sizes = [n for n in range(1, maximum) if n in (1, 2, 4) or n % max(8, 2 ** n.bit_length() // 8) == 0]
    if maximum:
        sizes.append(maximum)
    return sizes, [next((size for size in sizes if size >= batch), None) for batch in batches]


def swap(mine: Function) -> Places:
    """The runner captures these sizes, and pads a decode step to them."""

    def chosen(sizes: Sequence[int], wanted: int) -> int | None:
        if sizes and list(sizes) == mine(sizes[-1], [])[0]:
            return mine(sizes[-1], [wanted])[1][0]
        return pick(sizes, wanted)

    def built(maximum: int) -> list[int]:
        return list(mine(maximum, [])[0])

    return places.RECORDED | {"nanoinfer.engine.graphs:ladder": built, "nanoinfer.engine.graphs:pick": chosen}


EXERCISE = Spec(
    reference=ladder_and_picks,
    lines=8,
    example=lambda: call(13, [3, 9, 13, 14]),
    section="The ladder",
    axes=("result", "item"),
    typed=True,
    exact=True,
    refuse=("nanoinfer.engine.graphs:ladder", "nanoinfer.engine.graphs:pick"),
    swap=swap,
)


def any_maximum(case: Case) -> Call:
    """The ladder ends in the maximum, whatever that is, and steps widen with it."""
    maximum = case.turn((*range(1, 42), 63, 64, 65, 80, 81, 128, 129, 144))
    return call(maximum, [maximum - case.choice("less", (0, 0, 1)) or 1])


def rungs(case: Case) -> Call:
    """A batch gets the smallest size that holds it; one beyond the maximum gets none."""
    maximum = case.choice("maximum", (4, 7, 12, 20, 33, 72))
    batches = case.ints("batches", 1, maximum, case.size("batches", 1, 5)).tolist()
    return call(maximum, [*batches, maximum, maximum + case.size("beyond", 1, 3)])


def no_rows(case: Case) -> Call:
    """With a maximum of 0 there is no size, and every batch runs without a graph."""
    return call(0, case.ints("batches", 1, 20, case.turn((3, 0))).tolist())


@cache
def _all_rungs() -> list[int]:
    return ladder_and_picks(1_000_000, [])[0]


def any_batches(case: Case) -> Call:
    """Ladders of thousands of rows, and batches at a rung, below and beyond it, in any order, and more than once."""
    at = case.turn(range(48))
    if at > 5:  # a maximum at a power of two or beside it
        maximum = 2 ** (9 + at % 6) + (0, 1, -1, 3, -3, 77, 100)[at % 7]
        return call(maximum, [*range(maximum - 9, maximum + 3), *case.ints("batches", 1, maximum, 9).tolist()])
    maximum = (3000 + case.size("more", 0, 5), 1024, 1, 9, 21, 1_000_000)[at]
    if maximum == 21:
        return call(maximum, [])
    rungs = _all_rungs() if maximum == 1_000_000 else [1, 8, 16, 128, 256, 2048, 65_536, maximum]
    near = [max(1, n + more) for n in rungs for more in (-1, 0, 1)]
    near.append(2**40)
    near *= 50 if maximum == 1024 else 1
    return call(maximum, [near[at] for at in case.permutation("order", len(near)).tolist()] + [1, 1])


CHECKS = (Check(any_maximum, 49), Check(rungs, 4), Check(no_rows, 2), Check(any_batches, 48, wide=True))
