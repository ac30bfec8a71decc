"""Exercise 8.3: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from itertools import chain
from typing import Any

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]


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


EQUIVALENT = {
    "parts[at] = [theirs + own for theirs, own in zip(parts[at], received, strict=True)]": "a + b is b + a",
}


def _down(rank: int, size: int, values: list[float]) -> tuple[Any, ...]:
    return size - rank, size, {str(at): number for at, number in enumerate(values)}


def _played(answer: Function) -> Function:
    return Formed(answer, _down, lambda program, *args: program)


@edition("downwards", "the ring goes down, ranks are counted from 1, and numbers come by place", played=_played)
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
