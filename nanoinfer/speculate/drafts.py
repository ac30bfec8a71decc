"""Who guesses the next tokens of rows: the interface, and a person. Chapter 7."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import eq
from typing import TYPE_CHECKING, Protocol

LOOKUP = "lookup"  # drafts from the row's own text
NGRAM = "ngram"  # and from a table of what old children's books say
NONE = -1  # in place of a draft, where a sequence has fewer than another

if TYPE_CHECKING:  # the shell takes guesses before it needs torch
    from nanoinfer.speculate.engine import Drafting as Row


class Drafter(Protocol):
    """Guesses what rows will choose next. A wrong guess costs time, and never a token.

    One that can say cheaply, on the host, what it would have brought has a method `foreseen(row, most)`: how many of
    the row's newest `most` tokens it would have guessed, up to the first wrong one. One that keeps something by row has
    a method `move(sources, targets)`: these rows have other numbers from now on.
    """

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        """Of each row, the tokens that may follow its text: none, or up to its limit, which may be 0."""


def agreeing(guess: Iterable[object], text: Iterable[object]) -> int:
    """How many tokens of a guess are those of a text, up to the first wrong one."""
    return sum(takewhile(bool, map(eq, guess, text)))


class GivenDrafts:
    """The drafts that somebody puts here ahead of a step, for whatever row goes on: a person's guesses."""

    token_ids: Sequence[int] = ()

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        return [list(self.token_ids[:limit]) for limit in limits]
