"""Drafts by n-grams of a training text, where the row's own text has none. Chapter 7.

A table says which token follows the last three, two or one of a text most often; the longest that it knows decides. It
ships for the small model (`tools/training/drafts.py` made it), costs no step of a model, and serves other texts badly.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file
from torch import Tensor

from nanoinfer.speculate.lookup import Repeats, followed

if TYPE_CHECKING:
    from nanoinfer.speculate.engine import Drafting as Row

TABLE = Path(__file__).parents[1] / "data" / "ngrams.safetensors"
VOCABULARY = 50257  # whose ids the table has
BITS, MASK = 16, (1 << 16) - 1  # of a token
CONTEXT = 3  # tokens that it goes by, at most
REPEATED = (3, 2)  # tokens at the end of a row's own text that decide instead, if they stood there before


class NGrams:
    """What follows most often. tables: by number of context tokens, less 1, int64.

    An entry is context * 65536 + token, of 64 bits without a sign; an older token stands in higher bits.
    """

    def __init__(self, tables: Sequence[Tensor]) -> None:
        self._next: list[dict[int, int]] = []  # by number of context tokens, less 1
        for n, table in enumerate(tables, start=1):
            contexts = (table >> BITS) & ((1 << BITS * n) - 1)
            self._next.append(dict(zip(contexts.tolist(), (table & MASK).tolist(), strict=True)))

    @classmethod
    def load(cls, path: Path = TABLE) -> NGrams:
        """The table that ships, or another."""
        tables = load_file(path)
        return cls([tables[name] for name in sorted(tables)])

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        return [self.follow(row.tokens, limit) for row, limit in zip(rows, limits, strict=True)]

    def follow(self, end: Sequence[int], limit: int) -> list[int]:
        """What follows a text, of which the last `CONTEXT` tokens matter: as many as are known, up to the limit."""
        drafts: list[int] = []
        text = list(end[-CONTEXT:])
        while len(drafts) < limit and (token := self._after(text)) is not None:
            drafts.append(token)
            text = [*text, token][-CONTEXT:]
        return drafts

    def _after(self, text: Sequence[int]) -> int | None:
        """The most frequent token after the longest end of the text, of `CONTEXT` tokens at most, that is known."""
        context, token = 0, None
        for n, known in enumerate(self._next[: len(text)]):
            context += text[-1 - n] << BITS * n
            token = known.get(context, token)
        return token


class RepeatsOrNGrams(Repeats):
    """A `Drafter` by what followed in the row's own text, if enough of its end stood there before; else by n-grams."""

    def __init__(self, ngrams: NGrams) -> None:
        self.ngrams = ngrams

    def follow(self, text: str, limit: int) -> list[int]:
        """What follows a text in which each token is a character."""
        own = list(map(ord, followed(text, REPEATED)[:limit]))
        return own or self.ngrams.follow(list(map(ord, text[-CONTEXT:])), limit)
