"""Exercise 6.1: data, a fence, a flag: a receiver that never sees old data."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Spec, beside, call

MACHINE = beside(__file__, "machine.py")
Program = Generator[Any, Any, Any]


def deliver(me: int, data: list[str], flag: str, values: list[int], stamp: int) -> Program:
    """Program 0 sends the values, all others receive them: what each of these returns is the list of values.

    me: the program's number. data: names of as many words as there are values. flag: the name of one more word.
    stamp: the number of this launch, the same for all programs. values: whole numbers from 0 on, which program 0 alone
    may look at; it returns None. Before the launch the words of `data` hold anything, and the flag holds anything
    but the stamp. Nobody else writes to them.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it.
    """
    if me == 0:
        for word, value in zip(data, values, strict=True):
            yield "store", word, value
        yield ("fence",)
        yield "store", flag, stamp
        return None
    yield "wait", flag, lambda held: held == stamp
    received = []
    for word in data:
        received.append((yield "load", word))
    return received


def delivered(answer: Function, count: int, values: list[int], old: list[int], flag: int, stamp: int) -> str:
    """Run as many programs in all orders. old: what the words for data hold before; flag: what that word holds."""
    data = [f"data[{at}]" for at in range(len(values))]
    words = dict(zip(data, old, strict=True)) | {"flag": flag}
    makes = [lambda me=me: answer(me, data, "flag", values if me == 0 else [], stamp) for me in range(count)]

    def judge(returned: list[Any], held: dict[str, int]) -> str:
        wanted = [None, *[values] * (count - 1)]
        for me, (one, other) in enumerate(zip(returned, wanted, strict=True)):
            if repr(one) != repr(other):
                return f"program {me} returns {one}, and not {other}"
        return ""

    decoys = [lambda: answer(0, list(data), "flag", [value + 1 for value in values], stamp)]
    effort = {"most": 900, "walks": 10, "seed": str(values)}
    return MACHINE.tried(makes, words, judge, bits=32, decoys=decoys, endless=True, **effort)[0]


EXERCISE = Spec(
    reference=deliver,
    lines=11,
    example=lambda: call(2, [7, 0], [3, 3], 4, 5),
    section="A flag behind the data",
    scene=delivered,
)


def _values(case: Case, name: str, count: int, high: int = 9) -> list[int]:
    return case.ints(name, 0, high, count).tolist()


def one_receiver(case: Case) -> Call:
    """A receiver that has seen the flag sees all of the data, in whatever order stores arrive."""
    count = case.size("values", 2, 3)
    values = [1 + value for value in _values(case, "sent", count)]
    return call(2, values, [20 + at for at in range(count)], 0, case.size("stamp", 1, 9))


def an_old_flag(case: Case) -> Call:
    """What earlier launches left in the flag, more or less than the stamp or 0, is not taken for this launch's."""
    stamp = case.size("stamp", 6, 90)
    flag = case.turn((stamp - 1, stamp + 1, 0, 1))
    return call(2, _values(case, "sent", 1), [50], flag, stamp)


def any_launch(case: Case) -> Call:
    """No receivers or many, one value or many, zeros, equal ones and large ones; stamps 0 and near the wrap."""
    kind = case.turn(("alone", "zeros", "same", "large", "wrap", "long", "many", "three"))
    stamp = {"wrap": 0, "large": 2**32 - 1}.get(kind, case.size("stamp", 1, 9))
    count = {"long": 70, "many": 2, "alone": 3}.get(kind, case.size("values", 1, 2))
    values, old = _values(case, "sent", count), _values(case, "old", count, 99)
    if kind == "zeros":
        values, old = [0] * count, [5] * count
    if kind == "same":
        values = [value + 1 for value in values]
        old = [*values[:-1], values[-1] + 1]
    if kind == "large":
        values = [2**32 - 1 - value for value in values]
    programs = {"alone": 1, "many": 9, "three": 3}.get(kind, 2)
    return call(programs, values, old, (stamp - 1) % 2**32, stamp)


CHECKS = (Check(any_launch, 8, wide=True), Check(one_receiver, 3), Check(an_old_flag, 4))
