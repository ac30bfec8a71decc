"""Programs that run at once and tell each other values, and a search for the order that breaks them. Chapter 6.

Plain Python. A program is a generator, and each `yield` is one access to the memory that all programs share. A store
waits in a buffer of its program and arrives later: behind one to the same address, but ahead of any other if it likes.
"""

import random
from collections.abc import Callable, Generator, Sequence
from functools import partial
from math import tanh
from typing import Any

Program = Generator[
    tuple[Any, ...], Any, Any
]  # yields ("store", address, value), ("fence",) ... and is told what it read
Make = Callable[[], Program]
G, C = 2, 3  # programs, numbers of the stream
X = [500, -250, 100]  # the stream, in thousandths: whole numbers, so a sum is the same in any order
UP, DOWN = [[0.9, -0.4, 0.1], [-0.3, 0.8, 0.5]], [[0.7, 0.2, -0.1], [-0.5, 0.6, 0.3]]  # by program: a row, a column


class Run:
    """Programs, up to some point of a schedule. resident: how many run at once; the others begin as those end."""

    def __init__(
        self,
        programs: Sequence[Make],
        resident: int,
        schedule: tuple[Any, ...],
        memory: dict[str, Any],
    ) -> None:
        self.memory, self.resident, self.trace = dict(memory), resident, []  # type: ignore[var-annotated]
        self.running, self.ended = [make() for make in programs], [None] * len(programs)
        self.wants = [next(program) for program in self.running]  # each one's next access; () behind the last
        self.told: list[tuple[Any, ...]] = [() for _ in programs]  # what each has read
        self.buffers: list[list[tuple[str, Any]]] = [[] for _ in programs]  # stores that have not arrived
        for n, arrives in schedule:
            self.happen(n, arrives)

    def choices(self) -> list[tuple[int, str]]:
        """What can happen next: program n does its access (n, ""), or a store of it arrives (n, address)."""
        begun = [n for n, access in enumerate(self.wants) if access][: self.resident]
        arrivals = [(n, at) for n, buffer in enumerate(self.buffers) for at in dict(buffer)]
        return [(n, "") for n in begun if self.ready(n, *self.wants[n])] + arrivals

    def ready(self, n: int, what: str, at: str = "", value: Any = None) -> bool:
        if what == "wait":  # until the condition `value` holds of what is read
            return bool(value(self.read(n, at)))
        return not self.buffers[n] if what == "fence" else what != "add" or at not in dict(self.buffers[n])

    def read(self, n: int, at: str) -> Any:  # a program sees its own stores at once
        return dict(self.buffers[n]).get(at, self.memory.get(at, 0))

    def happen(self, n: int, arrives: str) -> None:
        if arrives:
            at = [address for address, _ in self.buffers[n]].index(arrives)
            self.memory[arrives] = self.buffers[n].pop(at)[1]
            return self.trace.append(f"{n}'s store arrives: {arrives} = {self.memory[arrives]}")
        self.access(n, *self.wants[n])
        while self.wants[n][:1] == ("store",):  # along with it: nobody sees a store until it arrives
            self.access(n, *self.wants[n])

    def access(self, n: int, what: str, at: str = "", value: Any = None) -> None:
        got = None if what in ("store", "fence") else self.read(n, at)
        if what == "store":
            self.buffers[n].append((at, value))
        elif what == "add":  # at once, and whole
            self.memory[at] = got + value
        self.trace.append(f"{n}: {what} {at} = {value if got is None else got}" if at else f"{n}: {what}")
        self.told[n] += (got,)
        try:
            self.wants[n] = self.running[n].send(got)
        except StopIteration as end:
            self.wants[n], self.ended[n] = (), end.value


def search(
    programs: Sequence[Make], right: list[Any], resident: int = 99, memory: dict[str, Any] | None = None,
    most: int = 20_000, seed: int = 0,
) -> tuple[int, int, list[str]]:  # fmt: skip
    """Try all interleavings, the shortest first -> points, interleavings that ended right, the first that did not.

    programs: functions that make them. right: what each must return. memory: as it is found; the rest is 0. Runs that
    have come to the same point go on as one. Where more than `most` points are left after so many events, a sample of
    them goes on, drawn by the seed.
    """
    points, ended, level = 0, 0, {"": ((), 1)}  # by point: a schedule that leads there, and how many do
    while level:
        points, following = points + len(level), {}
        for schedule, ways in level.values():
            run = Run(programs, resident, schedule, memory or {})
            choices, waiting = run.choices(), [n for n, access in enumerate(run.wants) if access]
            for n, value in enumerate(run.ended):
                if n not in waiting and value != right[n]:
                    return points, ended, [*run.trace, f"{n} ends with {value}, not {right[n]}"]
            if waiting and not choices:
                return points, ended, [*run.trace, f"{waiting} wait for ever"]
            ended += 0 if choices else ways
            for choice in choices:
                then = Run(programs, resident, (*schedule, choice), memory or {})
                point = repr((then.told, then.buffers, sorted(then.memory.items())))
                following[point] = ((*schedule, choice), ways + following.get(point, ((), 0))[1])
        level = dict(random.Random(seed).sample([*following.items()], min(most, len(following))))
    return points, ended, []


def half(x: list[int], who: int) -> list[int]:
    """What program `who` adds to the stream: norm, its row of up, GELU, its column of down."""
    mean = sum(x) / C
    deviation = (sum((value - mean) ** 2 for value in x) / C + 10) ** 0.5
    y = sum(UP[who][c] * (x[c] - mean) / deviation for c in range(C))
    y = y / 2 * (1 + tanh(0.7978845608 * (y + 0.044715 * y**3)))
    return [round(1000 * y * w) for w in DOWN[who]]


def program(who: int, exchange: Any, layers: int) -> Program:
    """One of G. Each half-block needs the stream, and so what all programs have added to it."""
    x = X
    for layer in range(1, layers + 1):
        mine = half(x, who)
        yield from exchange.put(who, layer, mine)
        shares = [mine]
        for other in range(G):
            if other != who:
                shares.append((yield from exchange.get(other, layer)))
        x = [sum(values) for values in zip(x, *shares, strict=True)]
    return x


class Flags:
    """The data, a fence, and behind it a flag, which says what layer the data are of. Two sets of data take turns."""

    def put(self, who: int, layer: int, mine: list[int]) -> Program:
        for c in range(C):
            yield "store", f"data[{layer % 2}][{who}][{c}]", mine[c]
        yield ("fence",)
        yield "store", f"flag[{who}]", layer

    def get(self, other: int, layer: int) -> Program:
        yield "wait", f"flag[{other}]", lambda flag: flag >= layer
        share = []
        for c in range(C):
            share.append((yield "load", f"data[{layer % 2}][{other}][{c}]"))
        return share


class Barrier(Flags):
    """One counter of those who have come, in place of flags. It goes on counting, and is never set back."""

    def put(self, who: int, layer: int, mine: list[int]) -> Program:
        for c in range(C):
            yield "store", f"data[{layer % 2}][{who}][{c}]", mine[c]
        yield ("fence",)
        yield "add", "counter", 1
        yield "wait", "counter", lambda count: count >= layer * G

    def get(self, other: int, layer: int) -> Program:
        share = []
        for c in range(C):
            share.append((yield "load", f"data[{layer % 2}][{other}][{c}]"))
        return share


class Words:
    """Each value in one word with its layer: a word proves itself, so there is no fence and no flag."""

    def put(self, who: int, layer: int, mine: list[int]) -> Program:
        for c in range(C):
            yield "store", f"word[{layer % 2}][{who}][{c}]", (mine[c], layer)

    def get(self, other: int, layer: int) -> Program:
        share = []
        for c in range(C):
            word = yield "wait", f"word[{layer % 2}][{other}][{c}]", lambda word: word and word[1] == layer
            share.append(word[0])
        return share


class NoFence(Flags):
    """As `Flags`, with the mistake: a store of data can arrive behind the flag."""

    def put(self, who: int, layer: int, mine: list[int]) -> Program:
        for access in super().put(who, layer, mine):
            if access != ("fence",):
                yield access


def grid(exchange: Any, layers: int = 2) -> tuple[list[Make], list[list[int]]]:
    """The programs, and what each must return: the stream as one program alone would have it."""
    x = X
    for _ in range(layers):
        x = [sum(values) for values in zip(x, *(half(x, who) for who in range(G)), strict=True)]
    return [partial(program, who, exchange, layers) for who in range(G)], [x] * G


if __name__ == "__main__":
    for exchange in Flags(), Barrier(), Words():
        points, ended, _ = search(*grid(exchange))
        print(f"{type(exchange).__name__}: {points} points, {ended:,} interleavings, and all end right")
    print("NoFence:", *search(*grid(NoFence(), layers=1))[2], sep="\n  ")
    print("Words, one resident:", *search(*grid(Words(), layers=1), resident=1)[2], sep="\n  ")
