"""A test that passes every right engine and fails every liar: the answer to the page's question. Read it last."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .toy import Toy


def check(make: Callable[..., Toy]) -> None:
    """The same day in the life of two engines, one of them without graphs: they must tell the same."""
    told = day(make(fill=float("nan")))
    assert told == day(make(graphs=False, fill=float("nan")))


def day(engine: Toy) -> list[object]:
    """All that an engine tells: texts, results that were kept, steps and captures that should not be."""
    told: list[object] = []
    for seed, temperature in ((1, 5.0), (2, 5.0), (2, 0.0)):  # the second time much is captured, and there was a reset
        engine.admit("wolf ", temperature, seed)
        told += engine.run(3)
        engine.release(0)
        for text in ("wolf ", "crane ", "ox ", "lark ", "hen ", "bat "):  # from one row up to the most
            engine.admit(text)
            engine.step()
        for _ in range(3):  # and down to three: in a graph of four, one is padding
            engine.release(len(engine.rows) - 1)
            engine.step()
        engine.release(0)
        engine.admit("blacksmith ")  # longer than what was captured for so many rows
        kept = [engine.step() for _ in range(14)]
        told += [*engine.texts(), torch.stack(kept).tolist()]
        engine.reset()
    engine.admit("ox ")
    engine.run(26)  # through more shapes than there may be graphs
    before = engine.captures
    return [*told, *engine.run(2), engine.missed, engine.captures - before]
