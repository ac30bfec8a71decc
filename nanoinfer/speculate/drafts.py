"""Who guesses the next tokens of rows: the interfaces, and a person. Chapter 7."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import eq
from typing import TYPE_CHECKING, Protocol, runtime_checkable

LOOKUP = "lookup"  # drafts from the row's own text
NGRAM = "ngram"  # and from a table of what old children's books say
NONE = -1  # in place of a draft, where a sequence has fewer than another

if TYPE_CHECKING:  # the shell takes guesses before it needs torch
    from torch import Tensor

    from nanoinfer.speculate.engine import Drafting as Row


class Drafter(Protocol):
    """Guesses what rows will choose next. A wrong guess costs time, and never a token.

    One that can say cheaply, on the host, what it would have brought has a method `foreseen(row, most)`: how many of
    the row's newest `most` tokens it would have guessed, up to the first wrong one.
    """

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        """Of each row, the tokens that may follow its text: none, or up to its limit, which may be 0."""


@runtime_checkable
class DeviceDrafter(Drafter, Protocol):
    """One that can do so without the host, of what it keeps on the device: within a captured step."""

    def propose(self, rows: Tensor, positions: Tensor, k: int) -> Tensor:
        """Drafts (B, k) of rows (B,) of the batch state, whose newest tokens stand at positions (B,); NONE for none."""

    def note(self, rows: Tensor, places: Tensor, tokens: Tensor) -> None:
        """A step has chosen these tokens (B, k + 1) for these places of texts; of the dummy row what is of no use."""

    def learn(self, rows: Sequence[Row]) -> None:
        """These rows have the tokens that the host knows, of which `learned` are on the device. No step in flight
        drafts; before one does, all are known.
        """

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Rows of the batch are to be known by other numbers."""


def agreeing(guess: Iterable[object], text: Iterable[object]) -> int:
    """How many tokens of a guess are those of a text, up to the first wrong one."""
    return sum(takewhile(bool, map(eq, guess, text)))


class GivenDrafts:
    """The drafts that somebody puts here ahead of a step, for whatever row goes on: a person's guesses."""

    token_ids: Sequence[int] = ()

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        return [list(self.token_ids[:limit]) for limit in limits]
