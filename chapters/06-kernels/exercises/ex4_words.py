"""Exercise 6.4: values that carry their proof: each word is checked, and what was checked is what is used."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Spec, beside, call

MACHINE = beside(__file__, "machine.py")
Program = Generator[Any, Any, Any]
ALL = 2**32


def exchange(me: int, slots: list[list[list[str]]], stamp: int, rounds: list[list[int]]) -> Program:
    """Rounds in which all programs exchange their values; what all have sent: a list for each round.

    me: the program's number. rounds: this program's own values, for each round a list; whole numbers from -2^31 to
    2^31 - 1. slots: names of words, of 64 bits each: for each of two slots, for each program, for each value one.
    Rounds use the slots in turn. stamp: the number of the first round, from 0 to 2^32 - 1, the same for
    all programs; each round has the next one, and after 2^32 - 1 comes 0. Nobody sets words back: at the beginning
    they hold what older rounds have left, which had other stamps, under any values.
    A word holds its stamp in the upper 32 bits, and in the lower ones its value modulo 2^32. It arrives whole. Other
    words may arrive earlier or later, and there is no flag and no barrier beside them.
    What is returned: for each round a list of lists, the values of program 0, those of program 1 and so on.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it.
    """
    heard: list[list[list[int]]] = []
    for at, mine in enumerate(rounds):
        number, words = (stamp + at) % 2**32, slots[at % 2]
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


def exchanged(answer: Function, launches: list[list[list[list[int]]]], stamp: int, old: int) -> list[str]:
    """Launch after launch, in all orders. launches: for each one, for each program, its rounds.

    stamp: of the first round of all. old: values of the words ahead of it, whose stamps are others: those before that,
    one that lies 64 away, and one that lies 2^31 away.
    """
    told = []
    count, width = len(launches[0]), len(launches[0][0][0]) if launches[0][0] else 1
    slots = [[[f"slot {s} of {me}[{v}]" for v in range(width)] for me in range(count)] for s in range(2)]
    words = [word for slot in slots for lines in slot for word in lines]
    away = (1, 2, 3, 64, 2**31)
    held = {word: (stamp - away[(at + old) % 5]) % ALL << 32 | (old + at) % ALL for at, word in enumerate(words)}
    for launch in launches:
        wanted = [list(each) for each in zip(*launch, strict=True)]

        def judge(returned: list[Any], held: dict[str, int], wanted: Any = wanted) -> str:
            for me, one in enumerate(returned):
                if repr(one) != repr(wanted):
                    return f"program {me} returns {one}, and not {wanted}"
            return ""

        def make(me: int, launch: Any = launch, stamp: int = stamp, more: int = 0) -> Any:
            own = [[list(line) for line in slot] for slot in slots]
            return answer(me, own, stamp % ALL, [[value ^ more for value in values] for values in launch[me]])

        makes = [lambda me=me, make=make: make(me) for me in range(count)]
        decoys = [lambda me=me, make=make: make(me, more=1) for me in range(count)]
        found, held = MACHINE.tried(makes, held, judge, most=900, walks=12, seed=f"{stamp} {launch}", decoys=decoys)
        told.append(found)
        if found != MACHINE.RIGHT:
            break
        stamp += len(launch[0])
    return told


EXERCISE = Spec(
    reference=exchange,
    lines=14,
    example=lambda: call([[[[5]], [[-6]]]], 8, 0),
    section="Words that prove themselves",
    scene=exchanged,
)


def _rounds(case: Case, name: str, count: int, rounds: int, width: int) -> list[list[list[int]]]:
    return case.ints(name, -9, 9, count, rounds, width).tolist()


def one_round(case: Case) -> Call:
    """Each word is proven for itself, whichever of them arrives first."""
    return call([_rounds(case, "values", 2, 1, case.turn((2, 1)))], case.size("stamp", 5, 90), case.turn((0, 7)))


def more_rounds(case: Case) -> Call:
    """Who is a round ahead overwrites nothing that others still read."""
    return call([_rounds(case, "values", 2, case.turn((3, 4)), 1)], case.size("stamp", 5, 90), 0)


def more_launches(case: Case) -> Call:
    """What another launch has left is not taken for this one's, though rounds and slots begin anew."""
    launches = [_rounds(case, f"values {at}", 2, case.turn((2, 1)), 1) for at in range(3)]
    return call(launches, case.size("stamp", 0, 9), case.turn((0, 3)))


def any_values(case: Case) -> Call:
    """One program, many of them, no round; values at both ends of their range; stamps around 2^32 - 1."""
    kind = case.turn(("alone", "none", "ends", "wraps", "zeros", "long", "many", "stamps", "far", "sixty"))
    count = {"alone": 1, "many": 5, "none": 3}.get(kind, 2)
    rounds = {"none": 0, "long": 70, "many": 2, "wraps": 3}.get(kind, 2)
    values = _rounds(case, "values", count, rounds, {"alone": 3}.get(kind, 1))
    stamp, old = case.size("stamp", 5, 90), 0
    if kind == "wraps":
        stamp = ALL - 1 - case.turn((0, 1, 1, 1))
    if kind == "far":
        stamp, old = 2**31 + stamp, 64
    if kind == "sixty":
        stamp, old = 64 + stamp % 60, 3
    if kind == "ends":
        values = [[[2**31 - 1], [-(2**31)]], [[-1], [0]]]
    if kind == "zeros":
        values = [[[0] for _ in own] for own in values]
    if kind == "stamps":  # the lower halves of old words look like stamps
        old = stamp
        values = [[[stamp + 1] for _ in own] for own in values]
    return call([values], stamp, old)


CHECKS = (Check(any_values, 10, wide=True), Check(one_round, 2), Check(more_rounds, 2), Check(more_launches, 2))
