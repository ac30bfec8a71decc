"""Exercise 6.6: a sum that has the same bits in any order, and counts its summands in the same word."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Spec, beside, call

MACHINE = beside(__file__, "machine.py")
Program = Generator[Any, Any, Any]
RANGE = 2.0**17


def add_up(count: int, words: list[str], values: list[float]) -> Program:
    """The sums of what all programs add, one for each word: what a program returns is a list of floats.

    count: how many programs there are, 1 to 255; each adds one value to each word. words: names of words of 64 bits,
    which hold 0 before the launch. values: this program's own, a float for each word.
    A word counts its summands in the upper 8 bits. Below them it holds the sum in units of 2^-30, as a number of 56
    bits that may be negative: an addition is that of 64 bits, and where the sum is negative it borrows 1 from the
    count. A summand is held between -2^17 and 2^17, so that 255 of them stay below 2^55 units, and what is finer than a
    unit is cut off, towards 0. A NaN counts as -2^17. The engine's kernel does the same.
    A sum is ready when all programs have added to it. It comes out as that number of units times 2^-30.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it.
    """
    for word, value in zip(words, values, strict=True):
        held = min(max(-(2.0**17), value), 2.0**17)
        yield "add", word, (1 << 56) + int(held * 2**30)
    sums = []
    for word in words:
        full = yield "wait", word, lambda held: (held + 2**55) % 2**64 >> 56 == count
        sums.append(((full + 2**55) % 2**56 - 2**55) / 2**30)
    return sums


def added(answer: Function, values: list[list[float]]) -> str:
    """Run as many programs as there are lists of values, in all orders, on words that hold 0."""
    words = {f"sum[{at}]": 0 for at in range(len(values[0]))}
    units = [[_units(value) for value in own] for own in values]
    wanted = [sum(column) / 2**30 for column in zip(*units, strict=True)]

    def judge(returned: list[Any], held: dict[str, int]) -> str:
        for me, one in enumerate(returned):
            if one != wanted or any(type(value) is not float for value in one):
                return f"program {me} returns {one}, and not {wanted}"
        return ""

    makes = [lambda own=own: answer(len(values), list(words), list(own)) for own in values]
    decoys = [lambda own=own: answer(len(values), list(words), [value + 1.0 for value in own]) for own in values[:9]]
    effort = {"most": 600, "walks": 1 if len(values) > 9 else 6, "seed": str(values), "decoys": decoys}
    return MACHINE.tried(makes, words, judge, **effort)[0]


def _units(value: float) -> int:
    """A summand as its contract has it, by another way than the reference."""
    if math.isnan(value):
        return -(2**47)
    if abs(value) >= RANGE:
        return 2**47 if value > 0 else -(2**47)
    whole, part = divmod(abs(value), 1.0)
    units = int(whole) * 2**30 + math.floor(part * 2**30)
    return units if value >= 0 else -units


EXERCISE = Spec(
    reference=add_up,
    lines=9,
    example=lambda: call([[0.5, -2.0], [0.25, 1.0]]),
    section="Sums in any order",
    scene=added,
)


def _floats(case: Case, name: str, count: int, width: int, scale: float) -> list[list[float]]:
    return (case.floats(name, count, width) * scale).tolist()


def two_programs(case: Case) -> Call:
    """A sum is read when both have added to it, and each word's for itself."""
    return call([[own[0] + 1.5, own[1] + 3.0] for own in _floats(case, "values", 2, 2, 0.25)])


def negative_sums(case: Case) -> Call:
    """A negative sum, also one that is negative for a while, borrows from no count."""
    values = _floats(case, "values", 3, 1, 1.0)
    return call([[-abs(values[0][0]) - 9.0], [abs(values[1][0]) + case.turn((1.0, 12.0))], [-1.0]])


def no_numbers(case: Case) -> Call:
    """NaN, infinities and large numbers count as what stands at the end of the range."""
    far = case.turn((math.nan, math.inf, -math.inf, 3e38, -(2.0**17) - 1.0, 2.0**17 + 0.5))
    return call([[far], [case.floats("other", 1).item() + 4.0]])


def fine_ones(case: Case) -> Call:
    """What is finer than a unit is cut off towards 0, before the sum."""
    fine = [2.0**-31, -(2.0**-31), 0.75 * 2.0**-30, -0.75 * 2.0**-30, 2.5 * 2.0**-30, -2.5 * 2.0**-30]
    return call([[case.turn(fine)], [case.turn(fine[2:])], [case.floats("other", 1).item()]])


def any_sum(case: Case) -> Call:
    """One program, more than a signed count holds, no word, many words; zeros, equal and cancelling ones; the ends."""
    kind = case.turn(("alone", "none", "zeros", "equal", "cancel", "ends", "below", "wide", "many"))
    count = {"alone": 1, "zeros": 3, "equal": 3, "many": 255}.get(kind, 2)
    width = {"none": 0, "wide": 70, "alone": 3}.get(kind, 1)
    values = _floats(case, "values", count, width, 100.0)
    if kind == "zeros":
        values = [[0.0], [-0.0], [0.0]]
    if kind == "equal":
        values = [values[0]] * count
    if kind == "cancel":
        values = [[2.0**17], [-(2.0**17)]]
    if kind in ("ends", "many"):
        values = [values[0], *[[2.0**17 if kind == "ends" else -(2.0**17)]] * (count - 1)]
    if kind == "below":
        values = [[-(2.0**17)], [-math.inf]]
    return call(values)


CHECKS = (
    Check(any_sum, 9, wide=True), Check(two_programs, 2), Check(negative_sums, 2), Check(no_numbers, 6),
    Check(fine_ones, 6),
)  # fmt: skip
