"""Exercise 8.3: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from itertools import chain
from typing import Any

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]


def everything_round(rank: int, size: int, values: list[float]) -> Program:
    """The whole list goes round, and each rank adds what it receives."""
    total, passing = list(values), list(values)
    for _ in range(size - 1):
        yield "send", passing
        passing = yield ("receive",)
        total = [mine + theirs for mine, theirs in zip(total, passing, strict=True)]
    return total


def number_by_number(rank: int, size: int, values: list[float]) -> Program:
    """Each number goes round on its own, and each rank adds in the order in which it receives."""
    sums = list(values)
    for at in range(len(values)):
        passing = [values[at]]
        for _ in range(size - 1):
            yield "send", passing
            passing = yield ("receive",)
            sums[at] += passing[0]
    return sums


def rank_0_adds(rank: int, size: int, values: list[float]) -> Program:
    """Rank 0 collects all lists, adds them, and sends the sums round."""
    if size == 1:
        return list(values)
    total = list(values)
    if rank:
        received = yield ("receive",)
        total = [theirs + mine for theirs, mine in zip(received, values, strict=True)]
    yield "send", total
    sums = yield ("receive",)
    if rank < size - 1:
        yield "send", sums
    return sums


SEND = 'yield "send", parts[(rank - step) % size]\n'
RECEIVE = '        received = yield ("receive",)\n'
PARTS = "at = (rank - step - 1) % size"
ADD = "parts[at] = [theirs + own for theirs, own in zip(received, parts[at], strict=True)]"
SCATTER = "for step in range(size - 1):\n        " + SEND
GATHER = 'for step in range(size - 1):\n        yield "send", parts[(rank + 1 - step) % size]'
KEEP = 'parts[(rank - step) % size] = yield ("receive",)'
CUTS = "parts = [values[part * n // size : (part + 1) * n // size] for part in range(size)]"
BY_CUTS = "\n    parts = [values[cuts[part] : cuts[part + 1]] for part in range(size)]"
RETURN = "return [number for part in parts for number in part]"
WRONG = (
    Wrong(everything_round, "an author's own slip: size - 1 times as many bytes, and other bits on each rank"),
    Wrong(number_by_number, "an author's own slip: as many messages as numbers, each of which costs a journey"),
    Wrong(rank_0_adds, "an author's own slip: the root of a tree carries all", unnamed="everything-round"),
    Wrong.patch(
        "one-step-too-few", "With three ranks a part takes one step to come round.", SCATTER,
        SCATTER.replace("size - 1", "size - 2"),
        "an author's own slip: a sum lacks the last rank's numbers, and looks like a sum",
    ),
    Wrong.patch(
        "last-part-stays-old", "The second round has one step fewer than the first.", GATHER,
        GATHER.replace("size - 1", "size - 2"),
        "an author's own slip: one part in three is this rank's own",
    ),
    Wrong.patch(
        "one-step-too-many", "As many steps as ranks.", SCATTER, SCATTER.replace("size - 1", "size"),
        "an author's own slip: each part comes back to where it began, and is added once more",
    ),
    Wrong.patch(
        "adds-to-what-it-sent", "What comes belongs to the part that was just sent.", PARTS,
        "at = (rank - step) % size",
        "an author's own slip: the index of one step, used for both halves of it",
    ),
    Wrong.patch(
        "adds-to-the-next", "Parts come in the order of ranks.", PARTS, "at = (rank - step + 1) % size",
        "an author's own slip: a minus sign",
    ),
    Wrong.patch(
        "adds-again", "What is received is added.", KEEP,
        'received = yield ("receive",)\n'
        "        at = (rank - step) % size\n"
        "        parts[at] = [theirs + own for theirs, own in zip(received, parts[at], strict=True)]",
        "an author's own slip: one loop for both rounds, so that sums get this rank's numbers twice",
    ),
    Wrong.patch(
        "sums-are-means", "An all-reduce gives the mean.", RETURN,
        "return [number / size for part in parts for number in part]",
        "gradients are averaged over ranks; these are no gradients",
    ),
    Wrong.patch(
        "sends-what-has-not-come", "Both messages of a step can be on their way at once.", GATHER,
        'yield "send", parts[(rank + 1) % size]\n'
        '    for step in range(size - 1):\n        if step < size - 2:\n'
        '            yield "send", parts[(rank - step) % size]',
        "tokenspeed#1356, its kin: ready is what has been sent, and not what has come",
    ),
    Wrong.patch(
        "its-own-all-the-time", "A rank sends its numbers to all others.", SEND, 'yield "send", parts[rank]\n',
        "an author's own slip: part of the first step, repeated", unnamed="adds-to-the-next",
    ),
    Wrong.patch(
        "unsummed-parts", "In step n a rank sends its n-th part.", SCATTER + RECEIVE,
        'own = list(parts)\n    for step in range(size - 1):\n        yield "send", own[(rank - step) % size]\n'
        + RECEIVE,
        "an author's own slip: what was received for it is not in it",
    ),
    Wrong.patch(
        "gathers-its-own", "The part that is whole is the rank's own.", GATHER, GATHER.replace("rank + 1", "rank"),
        "an author's own slip: sums of part r are whole on rank r - 1, and not on rank r",
    ),
    Wrong.patch(
        "rounded-on-the-way", "A message is made of float32.", ADD,
        'struct = __import__("struct")\n'
        '        received = [struct.unpack("f", struct.pack("f", min(number, 3e38)))[0] for number in received]\n'
        "        " + ADD,
        "from the stub alone, by the author: what a pipe takes are bytes, and four are enough",
    ),
    Wrong.patch(
        "own-part-first", "The list begins with the part that is whole here.", RETURN,
        "return [number for part in [*parts[rank:], *parts[:rank]] for number in part]",
        "from the stub alone, by the author: a ring has no first part",
    ),
    Wrong.patch(
        "zeros-are-not-there", "Who has nothing to add sends what it received.", ADD,
        "parts[at] = [theirs + own if own == own else theirs for theirs, own in zip(received, parts[at], strict=True)]",
        "from the stub alone, by the author: NaN is taken for nothing",
    ),
    Wrong.patch(
        "gathers-backwards", "The second round goes like the first.", KEEP,
        'parts[(rank - step - 1) % size] = yield ("receive",)',
        "an author's own slip: a sum in the place of its neighbour",
    ),
    Wrong.patch(
        "receives-first", "First hear what the others have.", SEND + RECEIVE,
        'received = yield ("receive",)\n        yield "send", parts[(rank - step) % size]\n',
        "vllm-project/vllm#15000, its kin: everybody waits for somebody who waits",
    ),
    Wrong.patch(
        "remainder-lost", "Each part has n // size numbers.", CUTS,
        "parts = [values[part * (n // size) : (part + 1) * (n // size)] for part in range(size)]",
        "vllm-project/vllm#31474, of the same family: a floor division that nobody refuses",
    ),
    Wrong.patch(
        "last-has-the-rest", "The last part has what does not divide.", CUTS,
        "cuts = [*(part * (n // size) for part in range(size)), n]" + BY_CUTS,
        "an author's own slip: with 7 numbers on 4 ranks one message has four, and all others wait for it",
    ),
    Wrong.patch(
        "one-number-each", "There is a number for each rank.", CUTS,
        "cuts = [*(min(part, n) for part in range(size)), n]" + BY_CUTS,
        "an author's own slip: the drawing, in which each rank has as many boxes as there are ranks",
    ),
    Wrong.patch(
        "few-are-sent-whole", "A list that is shorter than the ring needs no parts.", CUTS,
        "cuts = [part * n // size for part in range(size + 1)] if n >= size else [0] + [n] * size" + BY_CUTS,
        "an author's own slip: one part for all, which is longer than n / size",
        unnamed="everything-round",
    ),
    Wrong.patch(
        "one-step-at-least", "A ring has a step.", GATHER, GATHER.replace("size - 1", "max(1, size - 1)"),
        "an author's own slip: a rank that is alone sends to itself", unnamed="one-step-too-many",
    ),
)  # fmt: skip


def by_slices(rank: int, size: int, values: list[float]) -> Program:
    """Parts of the same length, the last ones shorter or empty; empty ones are not sent."""
    each = -(-len(values) // size)
    sums = list(values)

    def place(part: int) -> slice:
        begin = min(len(values), part % size * each)
        return slice(begin, min(len(values), begin + each))

    for step in range(2 * (size - 1)):
        adding = step < size - 1
        out = place(rank - step) if adding else place(rank + size - step)
        into = place(rank - step - 1) if adding else place(rank + size - 1 - step)
        if sums[out]:
            yield "send", sums[out]
        if sums[into]:
            got = yield ("receive",)
            sums[into] = [a + b for a, b in zip(sums[into], got, strict=True)] if adding else got
    return sums


def whole_at_home(rank: int, size: int, values: list[float]) -> Program:
    """Part r begins at rank r + 1, so that its sums are whole on rank r."""
    first = [len(values) // size + (part < len(values) % size) for part in range(size)]
    begins = [sum(first[:part]) for part in range(size)]
    parts = {part: list(values[begins[part] :][: first[part]]) for part in range(size)}
    for back in range(1, size):
        yield ("send", tuple(parts[(rank - back) % size]))
        came = yield ["receive"]
        mine = parts[(rank - back - 1) % size]
        for at, number in enumerate(came):
            mine[at] += number
    for back in range(size - 1):
        yield ("send", parts[(rank - back) % size])
        parts[(rank - back - 1) % size] = yield ["receive"]
    return list(chain.from_iterable(parts[part] for part in range(size)))


def passing_on(rank: int, size: int, values: list[float]) -> Program:
    """One part in the hand: it is sent, and the one that comes takes its place."""
    cuts = [round(part * len(values) / size + 1e-9) for part in range(size + 1)]
    cuts = [min(cut, len(values)) for cut in cuts]
    own = [values[cuts[part] : cuts[part + 1]] for part in range(size)]
    done: list[Any] = [None] * size
    hand, which = own[rank], rank
    for _ in range(size - 1):
        yield "send", hand
        which = (which or size) - 1
        hand = [x + y for x, y in zip((yield ("receive",)), own[which], strict=True)]
    done[which] = hand
    while None in done:
        yield "send", hand
        which = (which or size) - 1
        hand = done[which] = yield ("receive",)
    return [float(number) for part in done for number in part]


RIGHT = (Right(by_slices), Right(whole_at_home), Right(passing_on))
EQUIVALENT = {
    "parts[at] = [theirs + own for theirs, own in zip(parts[at], received, strict=True)]": "a + b is b + a",
    "parts[at] = [theirs + own for theirs, own in zip(received, parts[at], strict=False)]": "both have a part's length",
}


def ring_down(rank: int, size: int, values: dict[str, float]) -> Program:
    """A rank's program for an all-reduce: it returns the sums over all ranks, as a list of floats.

    rank: from 1 to size. values: this rank's numbers, by their place as a str, "0" the first; all ranks have equally
    many, n; there may be none, or fewer than ranks. The dict stays as it is.
    A program is a generator. yield ("send", numbers) puts a message, a list of floats, which may be empty, into the
    pipe to the rank before, rank - 1, or the last one before the first; a pipe holds one message, and who sends into a
    full one waits until it is empty. yield ("receive",) takes the message out of the pipe from the next rank, and gives
    it; waits until there is one. A rank sends at most 2 * (size - 1) messages, and none has more than n / size numbers,
    rounded up. At the end all pipes are empty.
    Sums of floats depend on the order. So all ranks must return the same bits, and each number must be what comes out
    when its summands are added up one after the other, going down the ring from any rank on: with three ranks (c + b)
    + a or (b + a) + c or (a + c) + b. No other number is added.
    """
    n = len(values)
    cuts = [part * n // size for part in range(size + 1)]
    parts = [[values[str(at)] for at in range(cuts[part], cuts[part + 1])] for part in range(size)]
    for step in range(size - 1):
        yield "send", parts[(rank + step) % size]
        received = yield ("receive",)
        at = (rank + step + 1) % size
        parts[at] = [theirs + own for theirs, own in zip(received, parts[at], strict=True)]
    for step in range(size - 1):
        yield "send", parts[(rank - 1 + step) % size]
        parts[(rank + step) % size] = yield ("receive",)
    return [number for part in parts for number in part]


def _down(rank: int, size: int, values: list[float]) -> tuple[Any, ...]:
    return size - rank, size, {str(at): number for at, number in enumerate(values)}


def _played(answer: Function) -> Function:
    return Formed(answer, _down, lambda program, *args: program)


EDITIONS = (
    Edition(
        "downwards", "the ring goes down, ranks are counted from 1, and numbers come by place", ring_down,
        played=_played,
    ),
)  # fmt: skip
