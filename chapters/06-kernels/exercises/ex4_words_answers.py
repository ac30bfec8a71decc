"""Exercise 6.4: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]
Slots = list[list[list[str]]]
HELD = 'held = yield "wait", word, lambda held: held >> 32 == number\n'


def second_reading(me: int, slots: Slots, stamp: int, rounds: list[list[int]]) -> Program:
    """A word that was checked may be read again when its value is needed: behind the next round's stores."""
    heard: list[list[list[int]]] = []
    for at in range(len(rounds) + 1):
        if at < len(rounds):
            for word, value in zip(slots[at % 2][me], rounds[at], strict=True):
                yield "store", word, (stamp + at) % 2**32 << 32 | value % 2**32
        if at:
            lines = []
            for theirs in slots[(at - 1) % 2]:
                values = []
                for word in theirs:
                    held = yield "load", word
                    values.append((held + 2**31) % 2**32 - 2**31)
                lines.append(values)
            heard.append(lines)
        for theirs in slots[at % 2] if at < len(rounds) else []:
            for word in theirs:
                yield "wait", word, lambda held: held >> 32 == (stamp + at) % 2**32
    return heard


def all_then_some(me: int, slots: Slots, stamp: int, rounds: list[list[int]]) -> Program:
    """All words are read at once, and those that are not there yet are waited for."""
    heard: list[list[list[int]]] = []
    for at, mine in enumerate(rounds):
        number, words = (stamp + at) % 2**32, slots[at % 2]
        for word, value in zip(words[me], mine, strict=True):
            yield "store", word, number << 32 | value % 2**32
        heard.append([])
        for theirs in words:
            values = []
            for word in theirs:
                held = yield "load", word
                values.append((held + 2**31) % 2**32 - 2**31)
            for word in theirs:
                yield "wait", word, lambda held: held >> 32 == number
            heard[-1].append(values)
    return heard


WRONG = (
    Wrong.patch(
        "first-word-for-all", "Words that are stored together arrive together, and the first one stands for them.",
        HELD,
        'yield "wait", theirs[0], lambda held: held >> 32 == number\n'
        '                held = yield "load", word\n',
        "NVIDIA/nccl#2053: two halves of 128 bytes that became visible apart, and one flag for both",
    ),
    Wrong.patch(
        "last-word-for-all", "What is stored last arrives last, so that the last word stands for all.",
        HELD,
        'yield "wait", theirs[-1], lambda held: held >> 32 == number\n'
        '                held = yield "load", word\n',
        "NVIDIA/nccl#786: a protocol that needs stores to arrive in ascending order, which is fragile",
    ),
    Wrong(all_then_some, "triton-lang/triton#10924: one load, and one thread reads what another has yet to write"),
    Wrong(second_reading, "triton-lang/triton#11459: copies of one load that raced with later stores"),
    Wrong.patch(
        "one-slot", "A word that has been read may be written again.", "slots[at % 2]", "slots[0]",
        "lightseekorg/tokenspeed#1356: one slot, overwritten by a quick rank while a slow one still read it",
    ),
    Wrong.patch(
        "sign-in-stamp", "A value fits into the lower half.", "value % 2**32", "value",
        "an author's own slip: a negative number has ones in its upper half",
    ),
    Wrong.patch(
        "unsigned", "The lower half is the value.", "(held + 2**31) % 2**32 - 2**31", "held % 2**32",
        "an author's own slip: -1 comes out as 4,294,967,295",
    ),
    Wrong.patch(
        "stamp-at-least", "Stamps grow.", "held >> 32 == number", "held >> 32 >= number",
        "NVIDIA/nccl#926: flags of 32 bits roll over, and buffers are cleaned ahead of it",
    ),
    Wrong.patch(
        "stamp-does-not-wrap", "Behind the last stamp comes the next number.", "(stamp + at) % 2**32", "stamp + at",
        "an author's own slip: the word has no room for it, and the condition waits for ever",
    ),
    Wrong.patch(
        "numbers-begin-anew", "Rounds are numbered within a launch.", "(stamp + at) % 2**32", "at + 1",
        "NVIDIA/nccl#2306: values without a generation, so that an old one looks like a fresh one",
    ),
    Wrong.patch(
        "any-word", "A word that is not 0 has been written.", "held >> 32 == number", "held != 0",
        "hw-native-sys/simpler#972: signals that were never set to zero, and a wait for at least 1",
    ),
    Wrong.patch(
        "lower-half-checked", "The stamp stands in the half that is read first.", "held >> 32 == number",
        "held % 2**32 == number",
        "an author's own slip: it waits for a value that looks like the stamp",
    ),
)  # fmt: skip


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


def with_fences(me: int, slots: Slots, stamp: int, rounds: list[list[int]]) -> Program:
    """A fence behind each round's stores, which costs time and is not needed."""
    heard = []
    for at in range(len(rounds)):
        for place, value in enumerate(rounds[at]):
            yield "store", slots[at % 2][me][place], ((stamp + at) % 2**32) * 2**32 | (value + 2**32) % 2**32
        yield ("fence",)
        said = [[0] * len(rounds[at]) for _ in slots[0]]
        for other in range(len(said)):
            for place in range(len(said[other])):
                held = yield "wait", slots[at % 2][other][place], lambda held: held >> 32 == (stamp + at) % 2**32
                said[other][place] = held % 2**32 - (held % 2**32 >> 31) * 2**32
        heard.append(said)
    return heard


RIGHT = (Right(by_polls), Right(own_kept), Right(with_fences))
EQUIVALENT = {
    "for word, value in zip(words[me], mine, strict=False):": "they are equally long",
    "values.append((held - 2 ** 31) % 2 ** 32 - 2 ** 31)": "2^31 more or less is the same modulo 2^32",
}


def even_and_odd(first: int, lines: dict[str, list[list[str]]], rounds: list[list[int]], me: int) -> Program:
    """Rounds in which all programs tell each other their values; what all have told: a list for each round.

    me: the program's number. rounds: this program's own values, for each round a list; whole numbers from -2^31 to
    2^31 - 1. lines: names of words, of 64 bits each, under "even" for the rounds 0, 2, 4 and so on, and under "odd" for
    the others: for each program, for each value one. first: the number of round 0, from 0 to 2^32 - 1, the same for all
    programs; each round has the next one, and after 2^32 - 1 comes 0. Nobody sets words back: at the beginning they
    hold what older rounds have left, which had other numbers, under any values.
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


def _named(me: int, slots: Slots, stamp: int, rounds: list[list[int]]) -> tuple[Any, ...]:
    return stamp, {"odd": slots[1], "even": slots[0]}, rounds, me


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda program, *args: program)


EDITIONS = (
    Edition(
        "even-and-odd", "words come by name, those of even rounds and those of odd ones", even_and_odd, played=_played,
    ),
)  # fmt: skip
