"""Exercise 4.7: the tokens of every step kept, though each replay writes into the same tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, beside, call
from nanoinfer.make import make_engine

scenes = beside(__file__, "scenes.py")
places = beside(__file__, "places.py")


def keep(replay: Callable[[], None], tokens: Tensor, count: int) -> list[Tensor]:
    """The tokens of the next `count` steps, 512 at most: a list with a tensor (B,) for each, to be read at any time.

    replay(): runs the recorded step once, and returns nothing. tokens (B,) of one row or more, whole numbers:
    what the step gave when it was recorded; at first nothing has run, and what it holds is undefined. The caller goes
    on replaying afterwards. No step may be run that was not asked for: each one advances the batch.
    """
    kept = []
    for _ in range(count):
        replay()
        kept.append(tokens.clone())
    return kept


class Kept:
    """In place of `Fetch`: the tokens of one step that has been launched, kept by a solution."""

    arrived = False  # as far as the engine knows: it looks when it must

    def __init__(self, mine: Function, tokens: Tensor) -> None:
        (self._tokens,) = mine(lambda: None, tokens, 1)

    def wait(self) -> list[int]:
        """The tokens, once the host wants them."""
        return list(map(int, self._tokens))


def swap(mine: Function) -> Places:
    """Every step's tokens are kept by it until the host, two steps behind, looks at them."""

    def behind(*args: Any) -> Any:
        made = make_engine(*args)
        made.lag = 2
        return made

    fetched = {"nanoinfer.engine.late:Fetch": partial(Kept, mine)}
    return places.RECORDED | fetched | {"nanoinfer.make:make_engine": behind}


EXERCISE = Spec(
    reference=keep,
    lines=5,
    example=lambda: call(torch.tensor([4, 1]), 3, 1),
    section="A replay returns nothing",
    axes=("step", "row"),
    tolerance=1e-9,
    imports=("import torch", "from torch import Tensor"),
    refuse=("nanoinfer.engine.state:Fetch.__init__",),
    swap=swap,
    pure=False,  # what it is handed is written to
    scene=scenes.kept,
)


def every_step(case: Case) -> Call:
    """Each step's tokens are its own, also after the next replay, and where they are part of a larger tensor."""
    every = case.choice("every", (1, 2, 3))
    start = case.ints("start", 0, 99_990, every * case.size("rows", 1, 4))
    return call(case.choice("type", (start, start.int())), case.size("steps", 1, 5), every)


def any_number(case: Case) -> Call:
    """No step, one, more than any ring of buffers has, of one row and of many; tokens beyond 32 bits, or below 0."""
    sizes = (1, 40, 2), (2, 0, 2), (1000, 17, 2), (1, 1, 100), (2, 9, 2), (2, 512, 1), (1, 40, 2)
    rows, steps, more = case.turn(sizes)
    below = case.turn((2**60, 99_991, 2**60, -(2**60), 1, 99_991, 2**60))  # below 1 there is 0 alone
    return call(case.ints("start", 0, abs(below) - 1, rows), steps, 1, below, more)


CHECKS = (Check(every_step, 6), Check(any_number, 7, wide=True))
