"""Exercise 3.2: in which slot of the pool each token of a step is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.cases import Call, Case, call
from nanocourse.exercises.exercise import Check, Function, Spec
from nanocourse.exercises.swap import replaced
from nanoinfer.cache.paged import PagedCache


def slot_mapping(tables: Tensor, positions: Tensor, last: Tensor, block_size: int) -> Tensor:
    """Where the keys and values of a step are written: slots (B, T) int64.

    tables (B, width) int32: the blocks of each row, in the order of its text; entries that are not in use are 0.
    positions (B, T) int64: of each column in its row's text; there is a table entry for each of them. last (B,) int64:
    the column of each row's last real token, -1 in a row that has none. Slot s is place s % block_size of block
    s // block_size. Columns that are padding are written to slot 0: block 0 is the null block.
    """
    blocks = tables.gather(1, positions // block_size)  # (B, T)
    slots = blocks * block_size + positions % block_size
    padding = torch.arange(positions.shape[1], device=positions.device) > last[:, None]
    return slots.masked_fill(padding, 0)


@contextmanager
def swap(mine: Function) -> Iterator[None]:
    """PagedCache.begin takes its slots from it."""
    begin = PagedCache.begin

    def begin_step(self: Any, step: Any) -> Any:
        taken = begin(self, step)
        self.slots = mine(self._tables, step.positions, step.last, self.block_size).flatten().long()
        return taken

    with replaced("nanoinfer.cache.paged:PagedCache.begin", begin_step):
        yield


def _example() -> Call:
    tables = torch.tensor([[3, 1, 6], [5, 2, 0]], dtype=torch.int32)
    return call(tables, torch.tensor([[6, 7, 8], [3, 4, 5]]), torch.tensor([2, 1]), 4)


EXERCISE = Spec(
    title="A slot for every token",
    reference=slot_mapping,
    task=(
        "A step brings T columns for each of B rows, and every real one of them must be written to the slot that the\n"
        "row's table gives it. Find the slots, for all layers at once."
    ),
    invariants=(
        "two real tokens never have the same slot",
        "a token's slot depends on its own row's table and on its position, never on its column",
        "tokens of one block lie side by side; from block to block the text jumps",
        "no padding is written into a block that somebody owns",
    ),
    lines=4,
    example=_example,
    section="A slot for every token",
    axes=("row", "column"),
    typed=True,
    tolerance=1e-9,
    refuse=("nanoinfer.cache.paged:PagedCache.begin",),
    swap=swap,
    hints=(
        "Invariant: give a row other blocks for the same text, and every one of its slots moves with its block,\n"
        "while the place within the block stays.",
        "Place: two numbers come out of a position, which of the row's blocks it is in, and where in it. The first\n"
        "is a column of the table; one entry a token is picked from each row's own line. Padding is known by\n"
        "columns, not by positions.",
        "Pseudocode:\n"
        "  for each token, the number of its block among the row's blocks, and look that up in the row's line\n"
        "  go as many slots into the pool as there are before that block, and then to the token's place\n"
        "  columns behind the last real one all go to slot zero",
    ),
)


def _call(case: Case, starts: list[int], reals: list[int], T: int, size: int) -> Call:
    """Rows whose step begins at `starts` and brings `reals` tokens; blocks are in no order."""
    width = -(-(max(starts) + T) // size)
    blocks = (case.permutation("blocks", len(starts) * width) + 1).int().view(len(starts), width)
    positions = torch.tensor(starts)[:, None] + torch.arange(T)
    return call(blocks, positions, torch.tensor(reals) - 1, size)


def decode(case: Case) -> Call:
    """One token a row: it lies in the block that the row's own table has for its position."""
    size, rows = case.choice("block size", (3, 4)), case.size("rows", 2, 4)
    return _call(case, [size * row + case.size("place", 1, 2) for row in range(rows)], [1] * rows, 1, size)


def a_chunk(case: Case) -> Call:
    """Several tokens that continue a text, from the middle of a block into the next: positions count, not columns."""
    size = case.choice("block size", (3, 5))
    T = case.size("tokens", 3, 2 * size)
    return _call(case, [size * case.size("blocks", 0, 2) + case.size("place", 0, 2)], [T], T, size)


def ragged(case: Case) -> Call:
    """Padding goes to slot 0, and a padding row is padding from end to end."""
    size, T = 4, case.size("columns", 3, 5)
    reals = [T, case.size("real", 1, T - 2), 0]
    order = case.permutation("order", 3).tolist()
    return _call(case, [0, 0, 0], [reals[at] for at in order], T, size)


CHECKS = (Check(decode, 3), Check(a_chunk, 3), Check(ragged, 3))
