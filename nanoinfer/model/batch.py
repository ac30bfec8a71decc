"""What one step is given: a list of tokens. Chapter 1."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import torch
from torch import Tensor

NEWEST = -1  # in place of a token id: the row's newest token, which only the device knows


@dataclass(frozen=True)
class Batch:
    """The tokens of one step: N tokens of B rows, each row's side by side and in order.

    A step may leave out the last three fields. Then logits are wanted after every token, and attention takes the
    tokens one at a time. With max_new 1 token b is row b's; with more, `row` alone says whose a token is.
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
    def slots(self) -> Tensor:  # TEMP until the switch: kernels say slots
        return self.row

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
    """A piece of a row's prompt that the row brings to a step."""

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
    def of(cls, going: Sequence[int], chunks: Sequence[Chunk], longest: int = 0) -> Layout:
        """As many as there are of each. going: rows that bring their newest token, of up to `longest` tokens."""
        counts = [len(chunk.token_ids) for chunk in chunks]
        ends = [longest] * bool(going) + [chunk.start + count for chunk, count in zip(chunks, counts, strict=True)]
        complete = len(going) + sum(chunk.complete for chunk in chunks)
        fresh = not going and not any(chunk.start for chunk in chunks)
        rows, tokens = len(going) + len(chunks), len(going) + sum(counts)
        return cls(rows, tokens, complete, max(counts), max(ends), fresh)

    @property
    def numbers(self) -> int:
        """How many numbers `pack` makes."""
        return 3 * self.tokens + self.rows + 1 + 2 * self.logits


def pack(going: Sequence[int], chunks: Sequence[Chunk], layout: Layout, dummy: int) -> Tensor:
    """All that the device must be told of a step: (layout.numbers,) int64, on the host, for one copy.

    going: rows that bring their newest token, first of all; which it is, and where it stands, only the device knows.
    What the layout has room for besides is padding: token 0 at position 0 of row `dummy`, in the last row of the batch.
    """
    numbers = _counting(1 << max(layout.max_context, layout.tokens).bit_length())
    row, starts, at = array("q", going), numbers[: len(going)], numbers[: len(going)]
    ids, positions, chosen = array("q", [NEWEST]) * len(row), array("q", [0]) * len(row), row[:]

    def pad(count: int) -> None:
        for values, value in ((ids, 0), (positions, 0), (row, dummy)):
            values.extend(array("q", [value]) * count)

    rectangle = layout.rows * layout.max_new == layout.tokens
    for chunk in chunks:
        count = len(chunk.token_ids)
        starts.append(len(ids))
        ids.extend(chunk.token_ids)
        positions.extend(numbers[chunk.start : chunk.start + count])
        row.extend(array("q", [chunk.row]) * count)
        if chunk.complete:
            at.append(len(ids) - 1)
            chosen.append(chunk.row)
        pad(layout.max_new - count if rectangle else 0)
    empty = layout.rows - len(going) - len(chunks)
    if rectangle:
        starts.extend(range(len(ids), layout.tokens, layout.max_new))
    else:
        starts.extend(array("q", [len(ids)]) * empty)
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
