"""What one step is given: a list of tokens. Chapter 1."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

NEWEST = -1  # in place of a token id: the row's newest token, which only the device knows
NEWEST_ALONE = (NEWEST,)


@dataclass(frozen=True)
class Batch:
    """N tokens of B rows, each row's side by side and in order. Nothing is padded but for a captured step.

    A decode step feeds one token a row, token b of row b, and wants all logits: it brings the first three fields.
    """

    token_ids: Tensor  # (N,) int64
    positions: Tensor  # (N,) int64, of each token in its own text
    row: Tensor  # (N,) int64, which row of the batch state, and of the cache, each token belongs to
    max_context: int  # no token stands at a position >= max_context
    max_new: int = 1  # tokens that one row brings, at most
    no_context: bool = False  # no row has tokens before those of this batch
    starts: Tensor | None = None  # (B + 1,) int64, where each row's tokens begin, and N
    logits_at: Tensor | None = None  # (K,) int64, the tokens after which a token is chosen
    logits_row: Tensor | None = None  # (K,) int64, which row that token is for

    @property
    def rows(self) -> int:
        """B, how many rows bring tokens."""
        return len(self.token_ids) if self.starts is None else len(self.starts) - 1

    @cached_property
    def _place(self) -> Tensor:
        """(N,) where each token stands in a rectangle of B rows and max_new columns, read row by row."""
        assert self.starts is not None
        n = torch.arange(len(self.token_ids), device=self.starts.device)
        b = torch.searchsorted(self.starts, n, right=True) - 1  # (N,) which of the B rows it is
        return n - self.starts[b] + b * self.max_new

    def padded(self, x: Tensor) -> Tensor:
        """(N, ...) -> (B, max_new, ...), for attention that needs a rectangle: zeros on the right of shorter rows."""
        places = self.rows * self.max_new
        if len(x) != places:
            x = x.new_zeros(places, *x.shape[1:]).index_copy(0, self._place, x)
        return x.view(self.rows, self.max_new, *x.shape[1:])

    def packed(self, y: Tensor) -> Tensor:
        """(B, max_new, ...) -> (N, ...): `padded` undone."""
        flat = y.flatten(0, 1)
        return flat if len(flat) == len(self.token_ids) else flat[self._place]


class Chunk(NamedTuple):
    """What one row brings to a step, as the host knows it: a piece of its prompt, or its newest token."""

    row: int
    start: int  # position of the first of these tokens
    token_ids: Sequence[int]
    complete: bool = True  # whether a token is to be chosen after the last one: a prompt that goes on waits


class Layout(NamedTuple):
    """The sizes of a packed batch. Where B rows of max_new tokens are N, each row is padded to max_new."""

    rows: int  # B
    tokens: int  # N
    logits: int  # K
    max_new: int
    max_context: int
    no_context: bool = False

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Layout:
        """As many as there are of each."""
        counts = [len(chunk.token_ids) for chunk in chunks]
        longest = max(chunk.start + count for chunk, count in zip(chunks, counts, strict=True))
        complete = sum(chunk.complete for chunk in chunks)
        return cls(len(chunks), sum(counts), complete, max(counts), longest, not any(chunk.start for chunk in chunks))

    @property
    def numbers(self) -> int:
        """How many numbers `pack` makes."""
        return 3 * self.tokens + self.rows + 1 + 2 * self.logits


def pack(chunks: Sequence[Chunk], layout: Layout, dummy: int) -> Tensor:
    """All that the device must be told of these chunks: (layout.numbers,) int64, on the host, for one copy.

    What the layout has room for besides is padding: token 0 at position 0 of row `dummy`, in the last row of the batch.
    """
    ids, positions, row, starts, at, chosen = (array("q") for _ in range(6))

    def pad(count: int) -> None:
        for values, value in ((ids, 0), (positions, 0), (row, dummy)):
            values.extend(array("q", [value]) * count)

    going = list(takewhile(lambda chunk: chunk.token_ids is NEWEST_ALONE, chunks))  # all at once: there may be many
    numbers = _counting(1 << max(layout.max_context, len(going)).bit_length())
    ids.extend(array("q", [NEWEST]) * len(going))
    positions.extend([chunk.start for chunk in going])
    row.extend([chunk.row for chunk in going])
    starts.extend(numbers[: len(going)])
    at.extend(starts)
    chosen.extend(row)
    rectangle = layout.rows * layout.max_new == layout.tokens
    for chunk in chunks[len(going) :]:
        count = len(chunk.token_ids)
        starts.append(len(ids))
        ids.extend(chunk.token_ids)
        positions.extend(numbers[chunk.start : chunk.start + count])
        row.extend(array("q", [chunk.row]) * count)
        if chunk.complete:
            at.append(len(ids) - 1)
            chosen.append(chunk.row)
        pad(layout.max_new - count if rectangle else 0)
    for _ in range(layout.rows - len(chunks)):
        starts.append(len(ids))
        pad(layout.max_new if rectangle else 0)
    pad(layout.tokens - len(ids))
    starts.append(len(ids))
    at.extend(array("q", [0]) * (layout.logits - len(at)))
    chosen.extend(array("q", [dummy]) * (layout.logits - len(chosen)))
    return torch.frombuffer(ids + positions + row + starts + at + chosen, dtype=torch.int64)


@cache
def _counting(count: int) -> array[int]:
    """0, 1, 2, ..., of which a slice is copied as memory."""
    return array("q", range(count))


def unpack(packed: Tensor, layout: Layout) -> Batch:
    """The batch whose tensors are views of packed (layout.numbers,)."""
    N, K = layout.tokens, layout.logits
    ids, positions, row, starts, at, chosen = torch.split(packed, [N, N, N, layout.rows + 1, K, K])
    return Batch(
        ids, positions, row, layout.max_context, layout.max_new, layout.no_context, starts, at, chosen
    )  # fmt: skip
