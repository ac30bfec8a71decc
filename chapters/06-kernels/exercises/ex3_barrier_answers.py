"""Exercise 6.3: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]


def last_clears_at_once(me: int, count: int, start: int, data: list[list[str]], arrived: str, turn: str) -> Program:
    """All wait until the counter is full, and the last one sets it back for the next barrier."""
    number = start
    for words in data:
        yield "store", words[me], number
        yield ("fence",)
        if (yield "add", arrived, 1) == count - 1:
            yield "store", arrived, 0
            yield ("fence",)
        else:
            yield "wait", arrived, lambda held: held == count
        number = 0
        for word in words:
            number += yield "load", word
    return number % 2**32


def full_again(me: int, count: int, start: int, data: list[list[str]], arrived: str, turn: str) -> Program:
    """The counter goes on, and whenever it is a multiple of the programs all of them have come."""
    number = start
    for words in data:
        yield "store", words[me], number
        yield ("fence",)
        yield "add", arrived, 1
        yield "wait", arrived, lambda held: held % count == 0
        number = 0
        for word in words:
            number += yield "load", word
    return number % 2**32


def once_full(me: int, count: int, start: int, data: list[list[str]], arrived: str, turn: str) -> Program:
    """All have come when the counter has come to their number."""
    number = start
    for words in data:
        yield "store", words[me], number
        yield ("fence",)
        yield "add", arrived, 1
        yield "wait", arrived, lambda held: held >= count
        number = 0
        for word in words:
            number += yield "load", word
    return number % 2**32


def counts_phases(me: int, count: int, start: int, data: list[list[str]], arrived: str, turn: str) -> Program:
    """In phase n the counter has come to n times as many, and it begins at 0."""
    number = start
    for phase, words in enumerate(data, 1):
        yield "store", words[me], number
        yield ("fence",)
        yield "add", arrived, 1
        yield "wait", arrived, lambda held: held >= phase * count
        number = 0
        for word in words:
            number += yield "load", word
    return number % 2**32


def flips_with_phase(me: int, count: int, start: int, data: list[list[str]], arrived: str, turn: str) -> Program:
    """The turn is 1 behind the first barrier, 0 behind the second one, and so on."""
    number = start
    for phase, words in enumerate(data):
        yield "store", words[me], number
        yield ("fence",)
        if (yield "add", arrived, 1) == count - 1:
            yield "store", arrived, 0
            yield ("fence",)
            yield "store", turn, 1 - phase % 2
        else:
            yield "wait", turn, lambda held: held == 1 - phase % 2
        number = 0
        for word in words:
            number += yield "load", word
    return number % 2**32


LOOK = 'before = yield "load", turn\n'
WRONG = (
    Wrong(
        last_clears_at_once,
        "NVIDIA/Fuser#2081: the last block sets the word back, and hides the change that all others look for",
    ),
    Wrong(full_again, "NVIDIA/cuml#458: a block comes to the next barrier while others have not left this one"),
    Wrong(once_full, "hw-native-sys/pypto#1829: a fixed threshold is met for ever behind the first barrier"),
    Wrong(counts_phases, "ROCm/aiter#4494: a counter that is zero at the first launch, and not at a replay"),
    Wrong(
        flips_with_phase,
        "bespoke-silicon-group/bsg_manycore#743: behind an odd number of barriers the second launch hangs",
    ),
    Wrong.patch(
        "clears-behind-turn", "The counter is set back when all have been let go.",
        'yield "store", arrived, 0\n            yield ("fence",)\n            yield "store", turn, before + 1\n',
        'yield "store", turn, before + 1\n            yield ("fence",)\n            yield "store", arrived, 0\n',
        "apache/tvm#16797: counters were cleared when a quick peer might already have come",
    ),
    Wrong.patch(
        "clears-without-fence", "What is stored first arrives first, the counter too.",
        'yield "store", arrived, 0\n            yield ("fence",)\n', 'yield "store", arrived, 0\n',
        "ROCm/tritonBLAS#61: a lock set to zero with no fence, so that it is not zero when it is looked at",
    ),
    Wrong.patch(
        "looks-too-late", "A program looks at the turn when it begins to wait.",
        LOOK + '        if (yield "add", arrived, 1) == count - 1:\n',
        'last = (yield "add", arrived, 1) == count - 1\n        ' + LOOK + "        if last:\n",
        "NVIDIA/cuml#458: by then another program may have let all go, and it waits for the barrier after it",
    ),
    Wrong.patch(
        "turn-is-larger", "Turns grow.", "held != before", "held > before",
        "an author's own slip: behind the largest number comes 0",
    ),
    Wrong.patch(
        "turn-by-one", "The turn that comes is one more than this one.", "held != before", "held == before + 1",
        "an author's own slip: no word of 32 bits holds 2^32", unnamed="turn-is-larger",
    ),
    Wrong.patch(
        "no-fence", "Who has counted itself in has stored its number.",
        'yield "store", words[me], number\n        yield ("fence",)\n', 'yield "store", words[me], number\n',
        "triton-lang/triton#4504: one warp gave the lock free while another was still inside",
    ),
    Wrong.patch(
        "nobody-clears", "The counter counts on, and the last one is known by what it saw.",
        'yield "store", arrived, 0\n', "pass\n",
        "Dao-AILab/flash-attention#1839: counters that did not begin at zero, and a kernel that waited for ever",
    ),
)  # fmt: skip


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


def first_one_leads(me: int, count: int, start: int, data: list[list[str]], arrived: str, turn: str) -> Program:
    """Program 0 waits for all others, sets the counter back and gives the turn."""
    mine = start
    for words in data:
        yield "store", words[me], mine
        yield ("fence",)
        now = yield "load", turn
        if me == 0:
            yield "wait", arrived, lambda held: held >= count - 1
            yield "store", arrived, 0
            yield ("fence",)
            yield "store", turn, (now + 1) % 2**32
        else:
            yield "add", arrived, 1
            while (yield "load", turn) == now:
                pass
        mine = 0
        for at in range(count):
            mine = (mine + (yield "load", words[at])) % 2**32
    return mine % 2**32


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


RIGHT = (Right(top_bit), Right(first_one_leads), Right(turn_by_addition))
EQUIVALENT = {
    "yield ('store', turn, before + 2)": "any other number will do",
    "yield ('store', turn, before - 1)": "any other number will do",
}


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


def _named(me: int, count: int, start: int, data: list[list[str]], arrived: str, turn: str) -> tuple[Any, ...]:
    return me + 1, start, {str(at): words for at, words in enumerate(data, 1)}, (arrived, turn)


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda program, *args: program)


EDITIONS = (Edition("numbered-from-one", "programs and phases are counted from 1", numbered_from_one, played=_played),)
