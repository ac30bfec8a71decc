"""Exercise 6.2: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]


def in_turns(
    me: int, count: int, data: list[str], flag: str, taken: str, rounds: int, messages: list[list[int]]
) -> Program:
    """The sender waits behind each message, and takes the flag by an addition; receivers poll."""
    received: list[list[int]] = []
    if me == 0:
        for at, message in enumerate(messages):
            for place in range(len(data)):
                yield "store", data[place], message[place]
            yield ("fence",)
            yield "add", flag, 1
            yield "wait", taken, lambda held: held >= (at + 1) * (count - 1)
        return None
    while len(received) < rounds:
        while (yield "load", flag) <= len(received):
            pass
        values = [0] * len(data)
        for place in range(len(data)):
            values[place] = yield "load", data[place]
        received += [values]
        yield "add", taken, 1
    return received


def flag_is_a_state(
    me: int, count: int, data: list[str], flag: str, taken: str, rounds: int, messages: list[list[int]]
) -> Program:
    """What is taken goes back to 0, by the sender, ahead of its next message."""
    if me == 0:
        for number, message in enumerate(messages, 1):
            for word, value in zip(data, message, strict=True):
                yield "store", word, value
            yield "store", taken, 0
            yield ("fence",)
            yield "store", flag, number
            yield "wait", taken, lambda held: held == count - 1
        return
    mine = []
    for number in range(1, rounds + 1):
        yield "wait", flag, lambda held: held >= number
        got = []
        for word in data:
            got.append((yield "load", word))
        mine.append(got)
        yield "add", taken, 1
    return mine


def _named(
    me: int, count: int, data: list[str], flag: str, taken: str, rounds: int, messages: list[list[int]]
) -> tuple[Any, ...]:
    words = {"data": data, "flag": flag, "taken": taken}
    return words, count - 1, me - 1, rounds, None if me else messages


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda program, *args: program)


@edition("passed-on", "words come by name, and the sender has no number", played=_played)
def passed_on(
    words: dict[str, str | list[str]], receivers: int, me: int, rounds: int, messages: list[list[int]] | None
) -> Program:
    """The sender is given messages, as many receivers are given None: what each of these returns is a list of them.

    me: a receiver's number, from 0 on; -1 for the sender, which returns None. words: under "data" names of as many
    words as each message has values: there is no other place for a message, and one after the other they go through
    it; under "flag" and "taken" the names of two more words. rounds: how many messages there are. Before the launch
    flag and taken hold 0, and the words for data anything.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it.
    """
    received = []
    for number in range(rounds):
        if messages is not None:
            yield "wait", words["taken"], lambda held: held == number * receivers
            for word, value in zip(words["data"], messages[number], strict=True):
                yield "store", word, value
            yield ("fence",)
            yield "store", words["flag"], number + 1
        else:
            yield "wait", words["flag"], lambda held: held == number + 1
            message = []
            for word in words["data"]:
                message.append((yield "load", word))
            received.append(message)
            yield "add", words["taken"], 1
    return received if messages is None else None
