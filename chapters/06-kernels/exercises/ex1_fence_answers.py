"""Exercise 6.1: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]


def by_polls(me: int, data: list[str], flag: str, values: list[int], stamp: int) -> Program:
    """Polls in a loop, and a fence behind each store."""
    if me != 0:
        while (yield "load", flag) != stamp:
            pass
        found = [0] * len(data)
        for at in range(len(data) - 1, -1, -1):
            found[at] = yield "load", data[at]
        return found
    for at in range(len(data)):
        yield ["store", data[at], values[at]]
        yield ("fence",)
    yield "store", flag, stamp
    yield ("fence",)


def data_by_additions(me: int, data: list[str], flag: str, values: list[int], stamp: int) -> Program:
    """Data are brought by additions too, and need no fence."""
    if me == 0:
        for word, value in zip(data, values, strict=True):
            yield "add", word, value - (yield "load", word)
        yield "store", flag, stamp
        return
    got: list[int] = []
    yield "wait", flag, lambda held: (held - stamp) % 2**32 == 0
    for word in data:
        got.append((yield "wait", word, lambda held: held >= 0))
    return got


def _named(me: int, data: list[str], flag: str, values: list[int], stamp: int) -> tuple[Any, ...]:
    return me + 1, {"data": data, "flag": flag}, stamp, None if me else values


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda program, *args: program)


@edition("sent", "words come by name, and who is given values is the one that sends", played=_played)
def from_the_last(me: int, words: dict[str, str | list[str]], stamp: int, sent: list[int] | None) -> Program:
    """The program that is given values sends them, all others receive them: each of these returns their list.

    me: the program's number, from 1 on; which of them sends is told by `sent` alone, which is None for the others.
    words: under "data" names of as many words as there are values, under "flag" the name of one word more. stamp: the
    number of this launch, the same for all programs. sent: whole numbers from 0 on; who sends them returns None. Ahead
    of the launch the words for data hold anything, and the flag holds anything but the stamp. Nobody else writes there.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it.
    """
    if sent is not None:
        for word, value in zip(words["data"], sent, strict=True):
            yield "store", word, value
        yield ("fence",)
        yield "store", words["flag"], stamp
        return None
    yield "wait", words["flag"], lambda held: held == stamp
    received = []
    for word in words["data"]:
        received.append((yield "load", word))
    return received
