"""Exercise 4.5: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed


def with_where(position: Tensor, live: Tensor, tables: Tensor, null: int, block_size: int) -> tuple[Tensor, ...]:
    """Slots and lengths of live rows; then those of padding rows are replaced, at the last slot of the block."""
    real = live.bool()
    at = position.where(real, torch.zeros_like(position))
    column = torch.div(at, block_size, rounding_mode="floor")
    block = tables[torch.arange(len(tables)), column]
    slots = torch.where(real, block * block_size + at - column * block_size, null * block_size + block_size - 1)
    two = min(2, tables.shape[1] * block_size)  # tokens that a padding row reads
    return slots, torch.where(real, at + 1, two), torch.where(real[:, None], tables, torch.full_like(tables, null))


def in_products(position: Tensor, live: Tensor, tables: Tensor, null: int, block_size: int) -> tuple[Tensor, ...]:
    """Multiplied by live; the table's column by a comparison, positions in int32."""
    tables = tables * live[:, None] + null * (1 - live[:, None])
    position = (position * live).int()
    column = torch.arange(tables.shape[1], dtype=torch.int32) == (position // block_size)[:, None]
    slots = (tables * column).sum(1) * block_size + position % block_size
    return slots.long(), position.float() + 1, tables.long()


EQUIVALENT = {
    "block = tables.gather(1, position[:, None] // block_size)[:, -1]": "there is one column: the first and the last",
}


def _columns(position: Tensor, live: Tensor, tables: Tensor, null: int, block_size: int) -> tuple[Any, ...]:
    return position, live, tables.T, null, block_size


def _in_rows(found: tuple[Tensor, Tensor], *args: object) -> tuple[Tensor, ...]:
    tables, (slots, lengths) = found
    return slots, lengths, tables.T


def _by_columns(answer: Function) -> Function:
    return Formed(answer, _columns, _in_rows)


@edition(
    "tables-in-columns",
    "tables are (width, B), a column a row; they come first in the result, and slots and lengths are one tensor (2, B)",
    played=_by_columns,
)
def by_columns(position: Tensor, live: Tensor, tables: Tensor, null: int, block_size: int) -> tuple[Tensor, Tensor]:
    """The table of each row of a decode step (width, B), and two lines (2, B): its slot, and how many tokens it reads.

    position (B,) int64: where the row's new token stands in its text. live (B,) int64: 1 for a row of a request, 0 for
    a padding row, which is in the step because the graph has more rows than there are requests; its position may be any
    number, and its table that of a request that has left. tables (width, B) int64, a column a row: the blocks of each
    row, in the order of its text. The row's token is written to its slot: slot s is place s % block_size of block s //
    block_size. Then as many tokens of its table's blocks as you return are read, from the first, and averaged: one at
    least, and no more than the table has room for, of any row. Block `null` belongs to no request: any row may write to
    it, and what it holds adds up to a finite number, however often it is read. A slot may be any int64; B is 128 at
    most, width a thousand. The three tensors are the engine's, to be read alone. Recorded once, this runs in every
    replay.
    """
    real = live > 0
    tables = torch.where(real, tables, null)
    at = torch.where(real, position, 0)
    block = torch.take_along_dim(tables, (at // block_size)[None], 0)[0]  # (B,)
    return tables, torch.stack([block * block_size + at % block_size, at + 1])
