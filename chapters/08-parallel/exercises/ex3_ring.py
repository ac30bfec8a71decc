"""Exercise 8.3: an all-reduce over a ring of pipes."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Spec, beside, call

RANKS = beside(__file__, "ranks.py")
RIGHT = "all ranks have the sums, bit for bit"


def ring(rank: int, size: int, values: list[float]) -> Generator[Any, Any, list[float]]:
    """A rank's program for an all-reduce: it returns the sums over all ranks, place by place, as a list of floats.

    rank: from 0 to size - 1. values: this rank's numbers; all ranks have equally many, n; there may be none, or fewer
    than ranks. The list stays as it is.
    A program is a generator. yield ("send", numbers) puts a message, a list of floats, which may be empty, into the
    pipe to the next rank, rank + 1, or 0 after the last; a pipe holds one message, and who sends into a full one waits
    until it is empty. yield ("receive",) takes the message out of the pipe from the rank before, and gives it; waits
    until there is one. A rank sends at most 2 * (size - 1) messages, and none has more than n / size numbers, rounded
    up. At the end all pipes are empty.
    Sums of floats depend on the order. So all ranks must return the same bits, and each number must be what comes out
    when its summands are added up one after the other, going round the ring from any rank on: with three ranks (a + b)
    + c or (b + c) + a or (c + a) + b. No other number is added.
    """
    n = len(values)
    parts = [values[part * n // size : (part + 1) * n // size] for part in range(size)]
    for step in range(size - 1):
        yield "send", parts[(rank - step) % size]
        received = yield ("receive",)
        at = (rank - step - 1) % size
        parts[at] = [theirs + own for theirs, own in zip(received, parts[at], strict=True)]
    for step in range(size - 1):
        yield "send", parts[(rank + 1 - step) % size]
        parts[(rank - step) % size] = yield ("receive",)
    return [number for part in parts for number in part]


def played(answer: Function, values: list[list[float]]) -> str:
    """Play a rank for each list of numbers: what is wrong, or that nothing is."""
    size, n = len(values), len(values[0])
    longest = -(-n // size)
    pipes: list[deque[list[float]]] = [deque() for _ in values]  # the n-th is the one that rank n receives from
    sent = [0] * size

    def told(rank: Any, asks: Any) -> tuple[bool, Any]:
        """Whether a rank can go on, and with what answer."""
        says = f"rank {rank.number} yields {str(asks)[:80]}"
        if not isinstance(asks, tuple | list) or not asks or asks[0] not in ("send", "receive"):
            raise RANKS.LostError(f"{says}: no send and no receive")
        if asks[0] == "receive":
            if len(asks) != 1:
                raise RANKS.LostError(f"{says}: receive takes nothing")
            return bool(pipes[rank.number]), pipes[rank.number].popleft() if pipes[rank.number] else None
        if len(asks) != 2 or not isinstance(asks[1], list | tuple) or {type(x) for x in asks[1]} - {float}:
            raise RANKS.LostError(f"{says}: a message is a list of floats")
        to = pipes[(rank.number + 1) % size]
        if to:
            return False, None
        sent[rank.number] += 1
        if sent[rank.number] > 2 * (size - 1):
            raise RANKS.LostError(
                f"rank {rank.number} sends {sent[rank.number]} messages, the last one {_short(asks[1])}"
            )
        if len(asks[1]) > longest:
            raise RANKS.LostError(f"rank {rank.number} sends {len(asks[1])} of {n} numbers at once: {_short(asks[1])}")
        to.append(list(asks[1]))
        return True, None

    try:
        ranks = RANKS.launch(
            answer,
            [(rank, size, own) for rank, own in enumerate(values)],
            beside=[(rank, size, [one + 1 for one in own]) for rank, own in enumerate(values)],
        )
        moved = True
        while moved:
            moved = False
            for rank in ranks:
                while not rank.over:
                    on, answered = told(rank, rank.asks)
                    if not on:
                        break
                    moved = True
                    rank.go(answered)
    except RANKS.LostError as error:
        return str(error)
    if stuck := [f"rank {rank.number} at {rank.asks[0]}" for rank in ranks if not rank.over]:
        return f"these wait for ever: {', '.join(stuck[:5])}{', ...' if len(stuck) > 5 else ''}"
    if left := [rank for rank, pipe in enumerate(pipes) if pipe]:
        return f"rank {left[0]} has not received {list(pipes[left[0]][0])[:9]}"
    return _judged([rank.returned for rank in ranks], values)


def _judged(returned: list[Any], values: list[list[float]]) -> str:
    size, n = len(values), len(values[0])
    for rank, own in enumerate(returned):
        if not isinstance(own, list) or len(own) != n or {type(number) for number in own} - {float}:
            return f"rank {rank} returns {str(own)[:200]}, and no list of {n} floats"
    for at in range(n):
        sums = {_rounded([values[(first + turn) % size][at] for turn in range(size)]) for first in range(size)}
        for rank, own in enumerate(returned):
            if repr(own[at]) not in sums:
                return f"rank {rank} has {own[at]!r} at place {at}, and not {' or '.join(sorted(sums))}"
            if repr(own[at]) != repr(returned[0][at]):
                return f"at place {at} rank 0 has {returned[0][at]!r} and rank {rank} has {own[at]!r}"
    return RIGHT


def _short(numbers: list[float]) -> str:
    return str(list(numbers[:5]))


def _rounded(summands: list[float]) -> str:
    total = summands[0]
    for summand in summands[1:]:
        total += summand
    return repr(total)


EXERCISE = Spec(
    reference=ring,
    lines=12,
    example=lambda: call([[1.0, 20.0, 300.0], [4.0, 50.0, 600.0]]),
    section="What an all-reduce is made of",
    scene=played,
)


def _values(case: Case, ranks: int, n: int, scale: float = 1.0) -> list[list[float]]:
    return (case.floats("values", ranks, n).double() * scale).tolist()


def every_part(case: Case) -> Call:
    """All sums are whole on every rank, by messages of one part each; also where a list does not divide."""
    ranks = case.turn((2, 3, 4, 3, 5))
    more = case.turn((1, 2, 3, 0, 1))
    return call(_values(case, ranks, ranks * case.size("each", 1, 2) + more))


def fewer_numbers(case: Case) -> Call:
    """Fewer numbers than ranks, or none."""
    ranks = case.turn((4, 3, 6, 5))
    return call(_values(case, ranks, case.turn((1, 0, 3, 4))))


KINDS = ("one", "none", "bits", "infinite", "nan", "huge", "zeros", "equal", "long", "many", "tiny", "pair", "large",
         "signed zeros")  # fmt: skip


def any_ring(case: Case) -> Call:  # noqa: PLR0911, PLR0912  one for each kind
    """One rank, many, no numbers, long lists; numbers whose sums depend on the order; NaN, infinite, tiny ones."""
    kind = case.turn(KINDS)
    if kind == "one":
        return call(_values(case, 1, 3))
    if kind == "none":
        return call([[], []])
    if kind == "bits":
        places = [1e16, 1.0, -1e16, 0.1, 3.0]
        return call([places[turn:] + places[:turn] for turn in case.permutation("turns", 5).tolist()])
    if kind == "long":
        return call(_values(case, 3, 200))
    if kind == "many":
        return call(_values(case, 11, 25))
    if kind == "pair":
        return call(_values(case, 2, 1))
    values = _values(case, 4, 6)
    if kind == "infinite":
        values[1][0], values[2][0], values[3][5], values[0][2] = (
            float("inf"),
            float("-inf"),
            float("inf"),
            float("-inf"),
        )
    if kind == "nan":
        values[2], values[0][3] = [float("nan")] * 6, float("nan")
    if kind == "huge":
        values = [[number * 1e308 for number in own] for own in values]
    if kind == "tiny":
        values = [[number * 1e-310 for number in own] for own in values]
    if kind == "large":
        values = [[number + 2.0**53 for number in own] for own in values]
    if kind in ("zeros", "equal"):
        values = [[0.0] * 6] * 4 if kind == "zeros" else [values[0]] * 4
    if kind == "signed zeros":
        values = [[-0.0, 0.0 if rank == 2 else -0.0, *own[:4]] for rank, own in enumerate(values)]
    return call([list(own) for own in values])


CHECKS = (Check(any_ring, len(KINDS), wide=True), Check(every_part, 5), Check(fewer_numbers, 4))
