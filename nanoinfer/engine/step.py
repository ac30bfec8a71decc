"""The two steps that chapter 4 records: everything that changes from one decode step to the next is on the device."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.samplers import Sampler
from nanoinfer.engine.state import BatchState
from nanoinfer.model.batch import Batch
from nanoinfer.model.gpt2 import GPT2, Cache


class Rows(Batch):
    """One token for each of rows 0..B-1: a row that is not live is padding."""

    @property
    def rows(self) -> int:
        return len(self.token_ids)


class Chunk(NamedTuple):
    """Tokens that the host brings for one row, the first at position `start`."""

    row: int
    start: int
    token_ids: Sequence[int]


class Layout(NamedTuple):
    """The sizes of a packed prefill: what a recording of it has baked in."""

    rows: int  # B
    tokens: int  # N
    longest: int
    past: int = 0

    @property
    def sizes(self) -> list[int]:
        """How many numbers `pack` makes of each kind."""
        return [self.tokens] * 3 + [self.rows + 1] + [self.rows] * 2

    @property
    def rectangle(self) -> bool:
        """Whether each row is padded to the longest."""
        return self.tokens == self.rows * self.longest


@dataclass(frozen=True)
class Prompts(Batch):
    """A prefill, which may be larger than what it holds: the rest is padding."""

    last_at: Tensor  # (B,) int64, where the last token of each prompt stands
    rows_of: Tensor  # (B,) int64, which row of the state gets the token that follows it

    @classmethod
    def of_packed(cls, packed: Tensor, layout: Layout) -> Prompts:
        """Views of `packed` (sum(layout.sizes),)."""
        ids, positions, rows, starts, last_at, rows_of = torch.split(packed, layout.sizes)
        return cls(ids, positions, rows, starts, layout.longest, layout.past, last_at, rows_of)

    def last(self, x: Tensor) -> Tensor:
        return x[self.last_at]


@dataclass(frozen=True)
class Prefill:
    """The tokens of a step that the host brings."""

    chunks: Sequence[Chunk]

    @cached_property
    def layout(self) -> Layout:
        """Just large enough for these chunks."""
        counts = [len(chunk.token_ids) for chunk in self.chunks]
        return Layout(len(counts), sum(counts), max(counts), max(chunk.start for chunk in self.chunks))

    def pack(self, layout: Layout, dummy: int) -> Tensor:
        """Return the numbers of a step of that layout, (sum(layout.sizes),) int64 on the host, for a single copy."""
        numbers = Numbers(layout, dummy)
        for chunk in self.chunks:
            numbers.add(chunk, chunk.row)
        return numbers.packed()


class Numbers:
    """The numbers of a prefill, one list of each kind.

    Where the layout is a rectangle, each row is padded to its width. Whatever else it has room for is padding too:
    token 0 at position 0 of the dummy row.
    """

    def __init__(self, layout: Layout, dummy: int) -> None:
        self.layout, self.dummy = layout, dummy
        self.ids, self.positions, self.row, self.starts, self.last, self.rows_of = (array("q") for _ in range(6))
        self.counting = _counting(1 << max(layout.past + layout.longest, layout.tokens).bit_length())

    def add(self, chunk: Chunk, row: int) -> None:
        """Append a chunk; the token that follows it goes to that row of the state."""
        count = len(chunk.token_ids)
        self.starts.append(len(self.ids))
        self.ids.extend(array("q", chunk.token_ids))
        self.positions.extend(self.counting[chunk.start : chunk.start + count])
        self.row.extend(array("q", [chunk.row]) * count)
        self.last.append(len(self.ids) - 1)
        self.rows_of.append(row)
        if self.layout.rectangle:
            self.pad(self.layout.longest - count)

    def pad(self, count: int) -> None:
        """Append so many tokens of padding."""
        for values, value in ((self.ids, 0), (self.positions, 0), (self.row, self.dummy)):
            values.extend(array("q", [value]) * count)

    def packed(self) -> Tensor:
        """All of them, padded to the layout."""
        layout, end = self.layout, len(self.ids)
        *_, starts, rows, _ = layout.sizes
        rectangle = range(end, layout.tokens, layout.longest)
        self.starts.extend(rectangle if layout.rectangle else array("q", [end]) * (starts - 1 - len(self.starts)))
        self.pad(layout.tokens - end)
        self.starts.append(layout.tokens)
        for values, value in ((self.last, 0), (self.rows_of, self.dummy)):
            values.extend(array("q", [value]) * (rows - len(values)))
        every = self.ids + self.positions + self.row + self.starts + self.last + self.rows_of
        return torch.frombuffer(every, dtype=torch.int64)


@cache
def _counting(count: int) -> array[int]:
    """0, 1, 2, ..., a slice of which is copied as memory."""
    return array("q", range(count))


@torch.inference_mode()
def prefill_step(model: GPT2, cache: Cache, state: BatchState, batch: Prompts, sampler: Sampler) -> Tensor:
    """Feed prompts; return the token (B,) that follows each, which is its row's newest from now on."""
    state.row.index_copy_(0, batch.rows_of, batch.rows_of)  # ahead of the sampler, which may go by it
    rows = state.at(batch.rows_of)
    tokens = sampler(model(batch, cache), rows)
    columns = tokens, batch.last(batch.positions) + 1, rows.step + 1, torch.ones_like(tokens)
    state.integers[:4].index_copy_(1, batch.rows_of, torch.stack(columns))  # token, position, step, live
    return tokens


@torch.inference_mode()
def decode_step(model: GPT2, cache: Cache, state: BatchState, rows: int, context: int, sampler: Sampler) -> Tensor:
    """Feed the newest token of rows 0..rows-1 and advance them; return the tokens (rows,) that follow.

    context: how many tokens the longest sequence has now, or more. Nothing else comes from the host but the choice of a
    sampler. A padding row feeds token 0 at position 0 to the dummy row, and stays as it is.
    """
    each = state.at(slice(0, rows))
    batch = Rows(each.token, each.position, each.row, each.row, 1, context - 1)  # where each starts, nobody asks
    return advance(each, sampler(model(batch, cache), each))


def advance(rows: BatchState, tokens: Tensor) -> Tensor:
    """Give rows their next tokens (B,); a padding row stays as it is. Returns the state's own tokens (B,)."""
    torch.mul(tokens, rows.live, out=rows.token)
    rows.integers[1:3].add_(rows.live)  # position and step
    return rows.token
