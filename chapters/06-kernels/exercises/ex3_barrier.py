"""Exercise 6.3: a barrier that can be used again, in the next phase and in the next launch."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Spec, beside, call

MACHINE = beside(__file__, "machine.py")
Program = Generator[Any, Any, Any]
ALL = 2**32


def phases(me: int, count: int, start: int, data: list[list[str]], arrived: str, turn: str) -> Program:
    """Phases one after the other, each of which needs what all programs made of the one before: the last sum.

    me: the program's number, below count. start: this program's own number for the first phase. data: for each phase
    the names of `count` words, one for each program. In a phase a program puts its number into its word of that phase;
    when all have done so it goes on with the sum of all words of that phase, which is its number for the next one, and
    at last what it returns. arrived, turn: two words for a barrier, one to count in and one to poll. Before the first
    launch `arrived` holds 0, and `turn` any number; no host sets them back between launches, and the words of `data`
    hold what older launches left. Words have 32 bits: what is stored or added wraps, and so does a sum.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it.
    """
    number = start
    for words in data:
        yield "store", words[me], number
        yield ("fence",)
        before = yield "load", turn
        if (yield "add", arrived, 1) == count - 1:
            yield "store", arrived, 0
            yield ("fence",)
            yield "store", turn, before + 1
        else:
            yield "wait", turn, lambda held: held != before
        number = 0
        for word in words:
            number += yield "load", word
    return number % 2**32


def run_phases(answer: Function, launches: list[list[int]], rounds: int, turn: int) -> list[str]:
    """Launch after launch, in all orders. launches: the start of each program, for each launch."""
    told, count = [], len(launches[0])
    data = [[f"data[{phase}][{one}]" for one in range(count)] for phase in range(rounds)]
    held = {word: 77 + at for at, word in enumerate(word for words in data for word in words)}
    held |= {"arrived": 0, "turn": turn}
    for launch, starts in enumerate(launches):
        wanted = list(starts)
        for _ in range(rounds):
            wanted = [sum(wanted) % ALL] * count

        def judge(returned: list[Any], held: dict[str, int], wanted: list[int] = wanted) -> str:
            for me, (one, other) in enumerate(zip(returned, wanted, strict=True)):
                if one != other or type(one) is not int:
                    return f"program {me} returns {one}, and not {other}"
            return ""

        def make(me: int, starts: list[int] = starts, more: int = 0) -> Any:
            return answer(me, count, starts[me] + more, [[*own] for own in data], "arrived", "turn")

        makes = [lambda me=me, make=make: make(me) for me in range(count)]
        decoys = [lambda me=me, make=make: make(me, more=1) for me in range(count)]
        effort = {"most": 1200, "walks": 8} if rounds < 9 else {"most": 0, "walks": 1}
        found, held = MACHINE.tried(makes, held, judge, bits=32, seed=f"{launch} {starts}", decoys=decoys, **effort)
        told.append(found)
        if found != MACHINE.RIGHT:
            break
    return told


EXERCISE = Spec(
    reference=phases,
    lines=15,
    example=lambda: call([[1, 2], [3, 4]], 2, 0),
    section="A barrier",
    scene=run_phases,
)


def _launches(case: Case, launches: int, count: int) -> list[list[int]]:
    return case.ints("starts", 1, 9, launches, count).tolist()


def more_phases(case: Case) -> Call:
    """The barrier works again in the next phase, also where one is still leaving it, and where the turn goes round."""
    return call(_launches(case, 1, case.turn((2, 3))), case.turn((3, 2)), case.turn((2, 0, ALL - 1, ALL - 2)))


def more_launches(case: Case) -> Call:
    """The barrier works in the next launch, with what this one has left."""
    return call(_launches(case, 3, 2), 1, case.turn((0, 3)))


def any_phases(case: Case) -> Call:
    """One program alone, many, more than a power of two; no phase, or a long run of them; sums that come round."""
    kind = case.turn(("alone", "none", "three", "large", "wraps", "odd", "long", "many"))
    count = {"alone": 1, "three": 3, "odd": 5, "many": 9}.get(kind, 2)
    rounds = {"none": 0, "long": 34, "three": 1, "many": 1, "odd": 1}.get(kind, 2)
    launches = _launches(case, 1 if kind in ("long", "many", "odd") else 2, count)
    if kind == "large":
        launches = [[ALL - start for start in starts] for starts in launches]
    return call(launches, rounds, ALL - 2 if kind == "wraps" else case.choice("turn", (0, 1, 7, 2**31 - 1, 2**31)))


CHECKS = (Check(any_phases, 8, wide=True), Check(more_phases, 4), Check(more_launches, 2))
