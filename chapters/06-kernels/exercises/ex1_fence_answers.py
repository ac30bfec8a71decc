"""Exercise 6.1: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]
FENCE, FLAG = 'yield ("fence",)\n', 'yield "store", flag, stamp\n'
WAIT = 'yield "wait", flag, lambda held: held == stamp\n'


def flag_before_data(me: int, data: list[str], flag: str, values: list[int], stamp: int) -> Program:
    """The flag says that data are on their way."""
    if me == 0:
        yield "store", flag, stamp
        yield ("fence",)
        for word, value in zip(data, values, strict=True):
            yield "store", word, value
        return None
    yield "wait", flag, lambda held: held == stamp
    received = []
    for word in data:
        received.append((yield "load", word))
    return received


def data_are_the_flag(me: int, data: list[str], flag: str, values: list[int], stamp: int) -> Program:
    """A word that has changed has arrived, and needs no flag."""
    before = []
    for word in data:
        before.append((yield "load", word))
    if me == 0:
        for word, value in zip(data, values, strict=True):
            yield "store", word, value
        return None
    for word, old in zip(data, before, strict=True):
        yield "wait", word, lambda held, old=old: held != old
    received = []
    for word in data:
        received.append((yield "load", word))
    return received


def loads_ahead(me: int, data: list[str], flag: str, values: list[int], stamp: int) -> Program:
    """Data are asked for ahead of the wait, so that memory is never idle."""
    if me == 0:
        for word, value in zip(data, values, strict=True):
            yield "store", word, value
        yield ("fence",)
        yield "store", flag, stamp
        return None
    received = []
    for word in data:
        received.append((yield "load", word))
    yield "wait", flag, lambda held: held == stamp
    return received


def fence_behind_first(me: int, data: list[str], flag: str, values: list[int], stamp: int) -> Program:
    """One fence orders all stores of a program."""
    if me == 0:
        for at, (word, value) in enumerate(zip(data, values, strict=True)):
            yield "store", word, value
            if at == 0:
                yield ("fence",)
        yield "store", flag, stamp
        return None
    yield "wait", flag, lambda held: held == stamp
    received = []
    for word in data:
        received.append((yield "load", word))
    return received


WRONG = (
    Wrong.patch(
        "no-fence", "Stores arrive in the order in which they stand in the program.", FENCE, "pass\n",
        "vllm-project/vllm#2760: another device's writes were read behind a flag with no fence between them",
    ),
    Wrong.patch(
        "fence-behind-flag", "A fence behind the flag sends data and flag off together.", FENCE + "        " + FLAG,
        FLAG + "        " + FENCE,
        "ROCm/triton#745: the lock was signalled while other warps had not yet stored their part",
    ),
    Wrong(fence_behind_first, "an author's own slip: a fence waits for the stores ahead of it alone"),
    Wrong(flag_before_data, "triton-lang/triton#4504: one warp gave the lock free while another was still inside"),
    Wrong(
        data_are_the_flag,
        "lightseekorg/tokenspeed#1541 does so, with a number that no value may be: here each number is a value",
    ),
    Wrong(
        loads_ahead,
        "an author's own slip: weights may be asked for ahead of the wait, since nobody writes to them",
    ),
    Wrong.patch(
        "no-wait", "By the time the receiver reads, the sender is done.", WAIT, 'yield "load", flag\n',
        "ROCm/tritonBLAS#61: locks were cleared with no fence ahead of their first look",
    ),
    Wrong.patch(
        "any-flag", "A flag that is not 0 is set.", "held == stamp", "held != 0",
        "ROCm/aiter#4916: a counter that is zero at the first launch, and is not at a replay",
    ),
    Wrong.patch(
        "flag-at-least", "Stamps grow, so that a flag that is as large will do.", "held == stamp", "held >= stamp",
        "an author's own slip: a stamp that wraps is smaller than all that came before it",
    ),
    Wrong.patch(
        "another-flag", "What has changed is the flag of this launch.", WAIT,
        'before = yield "load", flag\n    yield "wait", flag, lambda held: held != before\n',
        "an author's own slip: it waits for ever where the flag came ahead of its first look",
    ),
)  # fmt: skip


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


def flag_by_addition(me: int, data: list[str], flag: str, values: list[int], stamp: int) -> Program:
    """The flag is raised by an addition, which arrives at once."""
    if me > 0:
        while True:
            if stamp == (yield "load", flag):
                break
        got = []
        for word in data:
            got += [(yield "load", word)]
        return got
    before = yield "load", flag
    for word, value in list(zip(data, values, strict=True))[::-1]:
        yield "store", word, value
    yield ("fence",)
    yield "add", flag, stamp - before
    return None


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


RIGHT = (Right(by_polls), Right(flag_by_addition), Right(data_by_additions))
EQUIVALENT = {"for word, value in zip(data, values, strict=False):": "they are equally long"}


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


def _named(me: int, data: list[str], flag: str, values: list[int], stamp: int) -> tuple[Any, ...]:
    return me + 1, {"data": data, "flag": flag}, stamp, None if me else values


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda program, *args: program)


EDITIONS = (
    Edition(
        "sent", "words come by name, and who is given values is the one that sends", from_the_last, played=_played,
    ),
)  # fmt: skip
