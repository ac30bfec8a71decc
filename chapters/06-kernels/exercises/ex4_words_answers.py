"""Exercise 6.4: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]
Slots = list[list[list[str]]]


def by_polls(me: int, slots: Slots, stamp: int, rounds: list[list[int]]) -> Program:
    """Polls, and keeps what the last of them gave; words by arithmetic."""
    out = []
    for turn in range(len(rounds)):
        mark = (stamp + turn) & 0xFFFFFFFF
        for place in range(len(rounds[turn])):
            yield "store", slots[turn & 1][me][place], mark * 2**32 + (rounds[turn][place] & 0xFFFFFFFF)
        table = []
        for line in slots[turn & 1]:
            row = []
            for name in line:
                held = yield "load", name
                while held // 2**32 != mark:
                    held = yield "load", name
                low = held & 0xFFFFFFFF
                row.append(low - 2**32 if low >= 2**31 else low)
            table.append(row)
        out.append(table)
    return out


def own_kept(me: int, slots: Slots, stamp: int, rounds: list[list[int]]) -> Program:
    """Its own values need no memory, and others are asked from behind."""
    result: list[list[list[int]]] = []
    for at, mine in enumerate(rounds):
        number = (stamp + at) % 2**32
        for word, value in zip(slots[at % 2][me][::-1], mine[::-1], strict=True):
            yield "store", word, (number << 32) + value % 2**32
        lines = {me: list(mine)}
        for other in reversed(range(len(slots[0]))):
            if other != me:
                lines[other] = []
                for word in slots[at % 2][other]:
                    held = yield "wait", word, lambda held: not (held >> 32) ^ number
                    lines[other].append(int.from_bytes((held % 2**32).to_bytes(4, "little"), "little", signed=True))
        result.append([lines[other] for other in range(len(slots[0]))])
    return result


EQUIVALENT = {
    "values.append((held - 2 ** 31) % 2 ** 32 - 2 ** 31)": "2^31 more or less is the same modulo 2^32",
}


def _named(me: int, slots: Slots, stamp: int, rounds: list[list[int]]) -> tuple[Any, ...]:
    return stamp, {"odd": slots[1], "even": slots[0]}, rounds, me


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda program, *args: program)


@edition("even-and-odd", "words come by name, those of even rounds and those of odd ones", played=_played)
def even_and_odd(first: int, lines: dict[str, list[list[str]]], rounds: list[list[int]], me: int) -> Program:
    """Rounds in which all programs tell each other their values; what all have told: a list for each round.

    me: the program's number. rounds: this program's own values, for each round a list; whole numbers from -2^31 to
    2^31 - 1. lines: names of words, of 64 bits each, under "even" and "odd", which rounds use in turn: for each
    program, for each value one. first: the number of round 0, from 0 to 2^32 - 1, the same for all programs; each round
    has the next one, and after 2^32 - 1 comes 0. Nobody sets words back: at the beginning they hold what older rounds
    have left, which had other numbers, under any values.
    A word holds its round's number in the upper 32 bits, and in the lower ones its value modulo 2^32. It arrives whole.
    Other words arrive earlier or later, and there is no flag and no barrier beside them.
    What is returned: for each round a list of lists, the values of program 0, those of program 1 and so on.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it.
    """
    heard: list[list[list[int]]] = []
    for at, mine in enumerate(rounds):
        number, words = (first + at) % 2**32, lines["odd" if at % 2 else "even"]
        for word, value in zip(words[me], mine, strict=True):
            yield "store", word, number << 32 | value % 2**32
        heard.append([])
        for theirs in words:
            values = []
            for word in theirs:
                held = yield "wait", word, lambda held: held >> 32 == number
                values.append((held + 2**31) % 2**32 - 2**31)
            heard[-1].append(values)
    return heard
