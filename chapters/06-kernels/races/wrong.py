"""Kernels that race. Each is the right one with one method written otherwise."""

from __future__ import annotations

from .right import Barrier, C, G, Program, Warps, small


def launched(programs: int, resident: int) -> str:
    """Launched, however many there are."""
    return ""


class ResetByLast(Barrier):
    """Whoever comes last sets the counter back, and the others wait for that."""

    def meet(self, layer: int) -> Program:
        before = yield "add", "counter", 1
        if before == G - 1:
            yield "store", "counter", 0
        else:
            yield "wait", "counter", lambda count: count == 0


class SecondReplay(Barrier):
    """Counts from zero, which the counter was when it was made."""

    def meet(self, layer: int) -> Program:
        yield "add", "counter", 1
        yield "wait", "counter", lambda count: count == G


class EarlyUnlock(Warps):
    """One warp says that the program is done as soon as that warp is."""

    def unlock(self, number: int) -> Program:
        if number == 0:
            yield "store", "flag", 1


class TwoHalves(small.Words):  # type: ignore[misc, name-defined]
    """Value and stamp lie side by side, and are stored one after the other."""

    def put(self, who: int, layer: int, mine: list[int]) -> Program:
        for c in range(C):
            yield "store", f"value[{layer % 2}][{who}][{c}]", mine[c]
            yield "store", f"stamp[{layer % 2}][{who}][{c}]", layer

    def get(self, other: int, layer: int) -> Program:
        share = []
        for c in range(C):
            yield "wait", f"stamp[{layer % 2}][{other}][{c}]", lambda stamp: stamp == layer
            share.append((yield "load", f"value[{layer % 2}][{other}][{c}]"))
        return share
