"""The two steps that chapter 4 records: everything that changes from one decode step to the next is on the device."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.state import BatchState
from nanoinfer.model.gpt2 import GPT2, Cache
from nanoinfer.rungs.batch import Batch


class Rows(Batch):
    """One token for each of rows 0..B-1, which are slots 0..B-1 as far as they are live."""

    @property
    def rows(self) -> int:
        return len(self.token_ids)


class Chunk(NamedTuple):
    """Tokens that the host brings for one slot, the first at position `start`."""

    slot: int
    start: int
    token_ids: Sequence[int]


class Layout(NamedTuple):
    """The sizes of a packed prefill: what a recording of it has baked in."""

    rows: int  # B
    tokens: int  # N
    longest: int
    past: int = 0

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Layout:
        """Just large enough for these chunks."""
        counts = [len(chunk.token_ids) for chunk in chunks]
        return cls(len(chunks), sum(counts), max(counts), max(chunk.start for chunk in chunks))

    @property
    def sizes(self) -> list[int]:
        """How many numbers `pack` makes of each kind."""
        return [self.tokens] * 3 + [self.rows + 1] + [self.rows] * 2


@dataclass(frozen=True)
class Prompts(Batch):
    """A prefill, which may be larger than what it holds: the rest is padding."""

    last_at: Tensor  # (B,) int64, where the last token of each prompt stands
    rows_of: Tensor  # (B,) int64, which row of the state gets the token that follows it

    @classmethod
    def of_packed(cls, packed: Tensor, layout: Layout) -> Prompts:
        """Views of `packed` (sum(layout.sizes),)."""
        ids, positions, slots, starts, last_at, rows_of = packed.split(layout.sizes)
        return cls(ids, positions, slots, starts, layout.longest, layout.past, last_at, rows_of)

    def last(self, x: Tensor) -> Tensor:
        return x[self.last_at]


def pack(chunks: Sequence[Chunk], layout: Layout, dummy: int) -> Tensor:
    """Return the numbers of a prefill, (sum(layout.sizes),) int64 on the host, for a single copy.

    Where the layout is a rectangle, each row is padded to its width. Whatever else it has room for is padding too:
    token 0 at position 0 of the dummy slot.
    """
    numbers = _counting(1 << max(layout.past + layout.longest, layout.tokens).bit_length())
    ids, positions, slots, starts, last = (array("q") for _ in range(5))
    rectangle = layout.tokens == layout.rows * layout.longest

    def pad(count: int) -> None:
        for values, value in ((ids, 0), (positions, 0), (slots, dummy)):
            values.extend(array("q", [value]) * count)

    for chunk in chunks:
        count = len(chunk.token_ids)
        starts.append(len(ids))
        ids.extend(chunk.token_ids)
        positions.extend(numbers[chunk.start : chunk.start + count])
        slots.extend(array("q", [chunk.slot]) * count)
        last.append(len(ids) - 1)
        pad(layout.longest - count if rectangle else 0)
    empty = layout.rows - len(chunks)
    starts.extend(range(len(ids), layout.tokens, layout.longest) if rectangle else array("q", [len(ids)]) * empty)
    pad(layout.tokens - len(ids))
    starts.append(len(ids))
    last.extend(array("q", [0]) * empty)
    rows_of = array("q", [chunk.slot for chunk in chunks]) + array("q", [dummy]) * empty
    return torch.frombuffer(ids + positions + slots + starts + last + rows_of, dtype=torch.int64)


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
    sampler. A padding row feeds token 0 at position 0 to the dummy slot, and stays as it is.
    """
    each = state.at(slice(0, rows))
    batch = Rows(each.token, each.position, each.row, each.row, 1, context - 1)  # where each starts, nobody asks
    return advance(each, sampler(model(batch, cache), each))


def advance(rows: BatchState, tokens: Tensor) -> Tensor:
    """Give rows their next tokens (B,); a padding row stays as it is. Returns the state's own tokens (B,)."""
    torch.mul(tokens, rows.live, out=rows.token)
    rows.integers[1:3].add_(rows.live)  # position and step
    return rows.token
