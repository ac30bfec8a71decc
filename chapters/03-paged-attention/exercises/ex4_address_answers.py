"""Exercise 3.4: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition


def token_by_token(table: Tensor, positions: Tensor, head: int, heads: int, block_size: int, head_size: int) -> Tensor:
    """Python's own numbers, which never wrap."""
    stride = (heads * block_size * head_size, block_size * head_size, head_size)
    found = []
    for position in positions.tolist():
        place = (int(table[position // block_size]), head, position % block_size)
        found.append(sum(a * b for a, b in zip(place, stride, strict=True)))
    return torch.tensor(found, device=table.device)


def by_slots(table: Tensor, positions: Tensor, head: int, heads: int, block_size: int, head_size: int) -> Tensor:
    """From the slot, as the writing kernel has it."""
    at = positions.to(torch.int64)
    slot = table.to(torch.int64).take(at // block_size) * block_size + at % block_size
    return (slot // block_size * heads + head) * (block_size * head_size) + slot % block_size * head_size


EQUIVALENT: dict[str, str] = {}


def _in_two_rows(table: Tensor, positions: Tensor, *sizes: int) -> tuple[Tensor | int, ...]:
    """Every second token belongs to row 1; what a row has no token in is the null block."""
    rows, at = torch.arange(len(positions), dtype=torch.int32) % 2, positions.long() // sizes[2]
    tables = torch.zeros(2, len(table), dtype=torch.int32)
    tables[rows.long(), at] = table[at]
    return (tables, rows, positions, *sizes)


def _in_one_row(tables: Tensor, rows: Tensor, positions: Tensor, *sizes: int) -> tuple[Tensor | int, ...]:
    return (tables.amax(0), positions, *sizes)


@edition(
    "rows-mixed", "the tokens belong to several rows, each with a table of its own", args=_in_two_rows, back=_in_one_row
)
def key_offsets(
    tables: Tensor, rows: Tensor, positions: Tensor, head: int, heads: int, block_size: int, head_size: int
) -> Tensor:
    """How many numbers of the pool stand before the key of `head`, for each token: (N,) int64.

    tables (B, width) int32: the blocks of each row. rows, positions (N,) int32: of each token, its row and its position
    in that row's text. The pool of one layer has the shape (blocks, heads, block_size, head_size), and lies in memory
    in this order, without gaps. It may hold more numbers than 32 bits can count.
    """
    at = positions.long()
    part = tables.long()[rows.long(), at // block_size] * heads + head  # (N,) of all blocks, head by head
    return (part * block_size + at % block_size) * head_size
