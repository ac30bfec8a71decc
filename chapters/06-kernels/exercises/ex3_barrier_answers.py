"""Exercise 6.3: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]


def top_bit(me: int, count: int, start: int, data: list[list[str]], arrived: str, turn: str) -> Program:
    """One word: the arrivals of a barrier add up to 2^31, so that its top bit turns over, and nothing is set back."""
    value = start
    for words in data:
        yield "store", words[me], value
        yield ("fence",)
        before = yield "add", arrived, 2**31 - count + 1 if me == 0 else 1
        while not ((yield "load", arrived) ^ before) >> 31:
            pass
        found = []
        for word in words:
            found.append((yield "load", word))
        value = sum(found) & 2**32 - 1
    return value % 2**32


def turn_by_addition(me: int, count: int, start: int, data: list[list[str]], arrived: str, turn: str) -> Program:
    """The counter is set back by an addition, and the turn goes on by one: they need no fence."""
    total = start % 2**32
    for words in data:
        old = yield "load", turn
        yield "store", words[me], total
        yield ("fence",)
        came = 1 + (yield "add", arrived, 1)
        if came == count:
            yield "add", arrived, -count
            yield "add", turn, 1
        yield "wait", turn, lambda held: held - old
        total = 0
        for word in reversed(words):
            total = total + (yield "load", word)
        total %= 2**32
    return total


EQUIVALENT = {
    "yield ('store', turn, before + 2)": "any other number will do",
    "yield ('store', turn, before - 1)": "any other number will do",
}


def _named(me: int, count: int, start: int, data: list[list[str]], arrived: str, turn: str) -> tuple[Any, ...]:
    return me + 1, start, {str(at): words for at, words in enumerate(data, 1)}, (arrived, turn)


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda program, *args: program)


@edition("numbered-from-one", "programs and phases are counted from 1", played=_played)
def numbered_from_one(me: int, start: int, phases: dict[str, list[str]], barrier: tuple[str, str]) -> Program:
    """Phases one after the other, each of which needs what all programs made of the one before: the last sum.

    me: the program's number, from 1 on. start: this program's own number for the first phase. phases: for each one, by
    its number from 1 on as a str, the names of as many words as there are programs, the first one program 1's. In a
    phase a program puts its number into its word of that phase; when all have done so it goes on with the sum of all
    words of that phase, which is its number for the next one, and at last what it returns. barrier: a word
    that holds 0 ahead of the first launch, and one that holds any number; nobody sets them back between launches, and
    all other words hold what older launches left. Without a phase words and barrier are nobody's, and start is the sum.
    Words have 32 bits: what is stored or added beyond wraps, and so does a sum.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it.
    """
    number, (arrived, turn) = start, barrier
    for phase in range(1, len(phases) + 1):
        words = phases[str(phase)]
        yield "store", words[me - 1], number
        yield ("fence",)
        before = yield "load", turn
        if (yield "add", arrived, 1) == len(words) - 1:
            yield "store", arrived, 0
            yield ("fence",)
            yield "store", turn, before + 1
        else:
            yield "wait", turn, lambda held: held != before
        number = 0
        for word in words:
            number += yield "load", word
    return number % 2**32
