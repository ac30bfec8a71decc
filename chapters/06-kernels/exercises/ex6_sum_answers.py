"""Exercise 6.6: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]


def by_shifts(count: int, words: list[str], values: list[float]) -> Program:
    """Bits by shifts and masks; polls; words from behind."""
    units = []
    for value in values:
        if not value > -131072.0:
            units.append(-(1 << 47))
        else:
            units.append((1 << 47) if value > 131072.0 else int(value * 1073741824.0))
    for at in range(len(words))[::-1]:
        yield "add", words[at], ((1 << 56) + units[at]) & (1 << 64) - 1
    out = [0.0] * len(words)
    for at in range(len(words)):
        while True:
            low = (yield "load", words[at]) + (1 << 55) & (1 << 64) - 1
            if low >> 56 == count:
                break
        out[at] = ((low & (1 << 56) - 1) - (1 << 55)) / 1073741824
    return out


def one_word_after_the_other(count: int, words: list[str], values: list[float]) -> Program:
    """It waits for each sum before it adds to the next one, which costs time and no correctness."""
    import math

    sums = []
    for word, value in zip(words, values, strict=True):
        held = math.copysign(min(abs(value), 2.0**17), value) if not math.isnan(value) else -(2.0**17)
        yield "add", word, (1 << 56) + math.trunc(held * 2**30)
        full = yield "wait", word, lambda held: ((held + 2**55) >> 56) % 256 == count
        sums.append(float((full + 2**55) % 2**56 - 2**55) / 2**30)
    return sums


ROUND = "full = (yield ('wait', word, lambda held: (held + 2 ** 55) % "
EQUIVALENT = {
    ROUND + "2 ** 65 >> 56 == count))": "a word with 255 summands or fewer lies 2^55 below 2^64",
    ROUND + "3 ** 64 >> 56 == count))": "a word with 255 summands or fewer lies 2^55 below 2^64",
    "sums.append(((full - 2 ** 55) % 2 ** 56 - 2 ** 55) / 2 ** 30)": "2^55 more or less is the same modulo 2^56",
}


def _named(count: int, words: list[str], values: list[float]) -> tuple[Any, ...]:
    return dict(zip(words, values, strict=True)), count


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda program, *args: program)


@edition("count-below", "a word counts below, and adds above", played=_played)
def count_below(parts: dict[str, float], programs: int) -> Program:
    """The sums of what all programs add, one for each word: what a program returns is a list of floats.

    programs: how many there are, 1 to 255; each adds one value to each word. parts: this program's own values, a float
    for each word, under the word's name. Words have 64 bits, and hold 0 before the launch.
    A word counts its summands in the lower 8 bits. Above them it holds the sum in units of 2^-30, as a number of 56
    bits that may be negative: an addition is that of 64 bits. A summand is held between -2^17 and 2^17, so that 255 of
    them stay below 2^55 units, and what is finer than a unit is cut off, towards 0. A NaN counts as -2^17.
    A sum is ready when all programs have added to it. It comes out as that number of units times 2^-30.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it.
    """
    for word, value in parts.items():
        held = min(max(-(2.0**17), value), 2.0**17)
        yield "add", word, (int(held * 2**30) << 8) + 1
    sums = []
    for word in parts:
        full = yield "wait", word, lambda held: held % 256 == programs
        sums.append(((full + 2**63) % 2**64 - 2**63 >> 8) / 2**30)
    return sums
