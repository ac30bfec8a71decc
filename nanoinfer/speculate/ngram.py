"""Drafts by n-grams of a training text, where the row's own text has none. Chapter 7.

A table says which token follows the last three, two or one of a text most often; the longest that it knows decides. It
ships for the small model (`tools/training/drafts.py` made it), costs no step of a model, and serves other texts badly.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from safetensors.torch import load_file
from torch import Tensor

from nanoinfer.engine.scheduler import Row

TABLE = Path(__file__).parents[1] / "data" / "ngrams.safetensors"
VOCABULARY = 50257  # whose ids the table has
BITS, MASK = 16, (1 << 16) - 1  # of a token
CONTEXT = 3  # tokens that it goes by, at most
REPEATED = (3, 2)  # tokens at the end of a row's own text that decide instead, if they stood there before


class NGrams:
    """What follows most often. tables: by number of context tokens, less 1, int64, sorted by context.

    An entry is context * 65536 + token, of 64 bits without a sign; an older token stands in higher bits.
    """

    def __init__(self, tables: Sequence[Tensor]) -> None:
        bits = [(1 << BITS * n) - 1 for n in range(1, len(tables) + 1)]
        self._known = [((each >> BITS) & mask, each & MASK) for each, mask in zip(tables, bits, strict=True)]

    @classmethod
    def load(cls, path: Path = TABLE) -> NGrams:
        """The table that ships, or another."""
        tables = load_file(path)
        return cls([tables[name] for name in sorted(tables)])

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        return self.follow([_end(row) for row in rows], limits)

    def follow(self, ends: Sequence[Sequence[int]], limits: Sequence[int]) -> list[list[int]]:
        """What follows each of these texts, of which the last `CONTEXT` tokens matter: all go on together."""
        packed = [sum(token << BITS * at for at, token in enumerate(reversed(end[-CONTEXT:]))) for end in ends]
        context, drafts = torch.tensor(packed, dtype=torch.int64), []  # (B,)
        length = torch.tensor([len(end) for end in ends])
        for n in range(max(limits, default=0)):
            token = self._next(context, length + n)
            drafts.append(token)
            context = ((context << BITS) | token.clamp(min=0)) & ((1 << BITS * CONTEXT) - 1)
        found = [list(each) for each in zip(*(token.tolist() for token in drafts), strict=True)] or [[] for _ in ends]
        known = [each[: each.index(-1)] if -1 in each else each for each in found]
        return [each[:limit] for each, limit in zip(known, limits, strict=True)]

    def _next(self, context: Tensor, length: Tensor) -> Tensor:
        """Most frequent tokens (B,) after contexts (B,) of `length` (B,) tokens; -1 where none is known."""
        found = torch.full_like(context, -1)
        for n, (contexts, tokens) in enumerate(self._known, start=1):  # longer ones overwrite
            if len(contexts):
                wanted = context & ((1 << BITS * n) - 1)
                at = torch.searchsorted(contexts, wanted).clamp(max=len(contexts) - 1)
                found = torch.where((contexts[at] == wanted) & (length >= n), tokens[at], found)
        return found


class RepeatsOrNGrams:
    """A `Drafter` by what followed in the row's own text, if enough of its end stood there before; else by n-grams."""

    def __init__(self, ngrams: NGrams) -> None:
        self.ngrams = ngrams
        self._texts: WeakKeyDictionary[Row, Repeats] = WeakKeyDictionary()

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        drafts = [self._text(row).draft(limit) if limit else [] for row, limit in zip(rows, limits, strict=True)]
        rest = [0 if each else limit for each, limit in zip(drafts, limits, strict=True)]
        return [each or other for each, other in zip(drafts, self.ngrams.draft(rows, rest), strict=True)]

    def _text(self, row: Row) -> Repeats:
        prompt = row.request.prompt_token_ids
        if (text := self._texts.get(row)) is None:
            text = self._texts[row] = Repeats(prompt)
        text.extend(row.token_ids[len(text.token_ids) - len(prompt) :])
        return text


class Repeats:
    """Where each two and three tokens of one text ended last."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.token_ids: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self.extend(token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """The text goes on. Its very end is not known as an end yet: nothing has followed it."""
        for token in token_ids:
            end = len(self.token_ids)
            self._ends |= {tuple(self.token_ids[end - n :]): end for n in REPEATED if end >= n}
            self.token_ids.append(token)

    def draft(self, limit: int) -> list[int]:
        for n in REPEATED:
            if (end := self._ends.get(tuple(self.token_ids[-n:]))) is not None:
                return self.token_ids[end : end + limit]
        return []


def _end(row: Row) -> list[int]:
    """The row's newest tokens, as many as matter."""
    return [*row.request.prompt_token_ids[-CONTEXT:], *row.token_ids[-CONTEXT:]][-CONTEXT:]
