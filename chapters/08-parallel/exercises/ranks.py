"""Ranks of one process: each is a program, a generator that yields what it wants of the others, played in turns.

What a program asks for is told by its exercise. Here is what all of them need: begin them, here or in another process,
let them go on one by one, and say in a sentence where they are no such programs, or wait for each other for ever.

Programs that share a process could hand each other their data without a message. So a grader plays each launch once
more, in a new process that one rank has to itself, among recordings of the others: it must do as before.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from nanocourse.exercises.outcomes import Before
from nanocourse.exercises.scene import Remote, Resumed, kept_of

Answer = Callable[..., Any]
Args = tuple[Any, ...]
Past = tuple[Any, Any, bool]  # what a rank asks for, or what it returned, and whether it is over
STEPS = 600  # collectives of one play


class LostError(Exception):
    """Programs that are none, or that part: what happened, in a sentence."""


class Rank:
    """One rank's program. asks: what it yields; over: whether it has ended, with what it `returned` or `raised`.

    args: what it is made with, copies of which are its own. Neither these nor what it is told may it change. raising:
    the name of an exception that it may raise. past: all that it has asked for so far, and how it ended. before: the
    past that it has to repeat.
    """

    def __init__(
        self, number: int, answer: Answer, args: Args, raising: str = "", before: Sequence[Past] | None = None
    ) -> None:
        self.number, self._raising, self._before = number, raising, before
        own = copy.deepcopy(args)
        self._handed = Before(own)
        self.past: list[Past] = []
        self.asks: Any = None
        self.returned: Any = None
        self.raised, self.over = "", False
        try:
            made = answer(*own)
        except Exception as error:  # a function that is no generator, and refuses at once
            self._ends_by(error)
            return
        if not isinstance(made, Remote) and not hasattr(made, "send"):
            raise LostError(f"rank {number} is {type(made).__name__}, and no generator")
        self._program = made if isinstance(made, Remote) else Resumed(made)
        self.go(None)

    def go(self, answer: Any) -> None:
        """Let it go on with an answer to what it asked for, up to what it asks for next."""
        self._handed.add(answer)
        try:
            got = self._program([answer])
        except Exception as error:
            self._ends_by(error)
            return
        if self._handed.changed():
            raise LostError(f"rank {self.number} has changed what was handed to it")
        if not (isinstance(got, list | tuple) and len(got) == 2 and isinstance(got[0], list) and len(got[0]) == 1):
            raise LostError(f"rank {self.number} is no generator")
        (told,), self.over = got[0], bool(got[1])
        self.asks, self.returned = (None, told) if self.over else (told, None)
        self.past.append(copy.deepcopy((self.asks, self.returned, self.over)))
        if self._before is not None and _bits(self.past) != _bits(self._before[: len(self.past)]):
            raise LostError(f"rank {self.number} does something else in a process of its own")

    def _ends_by(self, error: Exception) -> None:
        if type(error).__name__ != self._raising or not self._raising:
            raise error
        self.raised, self.over, self.asks = self._raising, True, None


class Recorded:
    """A rank as it was in another process: whatever it is told, it asks for what it asked for there."""

    def __init__(self, number: int, past: Sequence[Past]) -> None:
        self.number, self._left = number, iter(past)
        self.go(None)

    def go(self, answer: Any) -> None:
        """Go on to what it asked for next."""
        self.asks, self.returned, self.over = copy.deepcopy(next(self._left))


def launch(answer: Answer, each: Sequence[Args], beside: Sequence[Args] = ()) -> list[Any]:
    """A rank for each of these arguments. beside: of programs that are begun first, and go no further."""
    kept = kept_of(answer)
    question, known = kept.get("question"), kept.setdefault("launches", {})
    if question is None or not kept.get("apart"):
        for number, args in enumerate(beside):
            Rank(number, answer, args)
        ranks = [Rank(number, answer, args) for number, args in enumerate(each)]
        if question is not None:
            known[question] = [rank.past for rank in ranks]
        return ranks
    alone = random.SystemRandom().randrange(len(each))
    for args in beside[alone : alone + 1]:
        Rank(alone, answer, args)
    pasts = enumerate(known[question])
    return [Rank(n, answer, each[n], before=past) if n == alone else Recorded(n, past) for n, past in pasts]


def _bits(value: Any) -> str:
    return repr(tree_map_only(Tensor, lambda one: (one.dtype, one.shape, one.tolist()), value))


def together(ranks: Sequence[Rank], exchange: Callable[[list[Any]], Sequence[Any]]) -> None:
    """Play programs all of whose yields are collectives: every rank enters each of them, or all wait for ever.

    exchange: what each rank is told, of what all ranks have yielded.
    """
    for _ in range(STEPS):
        over = [rank.number for rank in ranks if rank.over]
        if len(over) == len(ranks):
            return
        if over:
            waits = next(rank.number for rank in ranks if not rank.over)
            raise LostError(f"rank {over[0]} has ended, and rank {waits} waits for it in a collective, for ever")
        for rank, answer in zip(ranks, exchange([rank.asks for rank in ranks]), strict=True):
            rank.go(answer)
    raise LostError(f"ranks still run after {STEPS} collectives")
