"""What the five should have been, as programs of small.py's machine; what small.py has itself is taken from there."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from nanobook.examples import load

small = load(Path(__file__).resolve().parents[1] / "small.py")
Program, G, C = small.Program, small.G, small.C


class Barrier(small.Barrier):
    """small.py's counter, in parts that a mistake can replace. before: how often all have met in earlier launches."""

    def __init__(self, before: int = 0) -> None:
        self.before = before

    def put(self, who: int, layer: int, mine: list[int]) -> Program:
        for c in range(C):
            yield "store", f"data[{layer % 2}][{who}][{c}]", mine[c]
        yield ("fence",)
        yield from self.meet(layer)

    def meet(self, layer: int) -> Program:
        come = (self.before + layer) * G
        yield "add", "counter", 1
        yield "wait", "counter", lambda count: count >= come


class Warps:
    """A program of two warps writes, and another one reads. The warps meet before one of them says that it is done."""

    def warp(self, number: int) -> Program:
        yield "store", f"data[{number}]", 10 + number
        yield ("fence",)
        yield from self.unlock(number)

    def unlock(self, number: int) -> Program:
        yield "add", "warps", 1
        if number == 0:
            yield "wait", "warps", lambda warps: warps == 2
            yield "store", "flag", 1

    def reader(self) -> Program:
        yield "wait", "flag", lambda flag: flag == 1
        first = yield "load", "data[0]"
        second = yield "load", "data[1]"
        return first + second


def refuse(programs: int, resident: int) -> str:
    """Why they are not launched, or nothing."""
    return f"{programs} programs wait for each other, and {resident} can run at once" if programs > resident else ""


def warps(kind: type[Warps]) -> tuple[int, int, list[str]]:
    """All interleavings of two warps and the reader."""
    made = kind()
    result: tuple[int, int, list[str]] = small.search(
        [partial(made.warp, 0), partial(made.warp, 1), made.reader], [None, None, 21]
    )
    return result


def launches(kind: type[Barrier]) -> tuple[int, int, list[str]]:
    """All interleavings of a first launch, and of a second one on the memory that it has left."""
    first: tuple[int, int, list[str]] = small.search(*small.grid(kind(), layers=1))
    if first[2]:
        return first
    run = small.Run(small.grid(kind(), layers=1)[0], G, (), {})
    while run.choices():
        run.happen(*run.choices()[0])
    second: tuple[int, int, list[str]] = small.search(*small.grid(kind(before=1), layers=1), memory=run.memory)
    return second
