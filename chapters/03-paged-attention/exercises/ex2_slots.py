"""Exercise 3.2: in which slot of the pool each token of a step is written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, call
from nanoinfer.cache.captured import CapturedPaged


def slot_mapping(tables: Tensor, row: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Where the keys and values of a step's N tokens, one at least, are written: slots (N,) int64.

    tables (rows, width) int32: the blocks of each row, in the order of its text; entries behind the text may name any
    block. row, positions (N,) int64: of each token, its row and its position in that row's text; there is a table entry
    for each position. Each row's tokens stand side by side, and rows in any order. Slot s is place s % block_size of
    block s // block_size. Padding, at position 0 of row `rows`, is written to slot 0: block 0 is the null block.
    """
    which, place = positions // block_size, positions % block_size  # (N,) each
    block = tables[row.clamp(max=len(tables) - 1), which].long()  # (N,)
    slots = block * block_size + place
    return torch.where(row < len(tables), slots, 0)


def swap(mine: Function) -> Places:
    """PagedCache.places is this. Where the last line of tables is the dummy slot's, it is held back."""

    def places(self: Any, batch: Any) -> Tensor:
        tables = self.tables[:-1] if isinstance(self, CapturedPaged) else self.tables
        return mine(tables, batch.row, batch.positions, self.block_size).flatten().long()

    return {"nanoinfer.cache.paged:PagedCache.places": places}


def _example() -> Call:
    tables = torch.tensor([[3, 1, 6], [5, 2, 4]], dtype=torch.int32)
    return call(tables, torch.tensor([1, 1, 0, 2]), torch.tensor([3, 4, 6, 0]), 4)


EXERCISE = Spec(
    reference=slot_mapping,
    lines=4,
    example=_example,
    section="A slot for every token",
    axes=("token",),
    typed=True,
    refuse=("nanoinfer.cache.paged:PagedCache.places",),
    swap=swap,
)


def _call(case: Case, parts: list[tuple[int, int, int]], rows: int, padding: int, size: int) -> Call:
    """A step of parts (row, position of the first token, number of tokens), then padding; blocks are in no order."""
    row = [row for row, _, count in parts for _ in range(count)] + [rows] * padding
    positions = [start + at for _, start, count in parts for at in range(count)] + [0] * padding
    width = -(-max(*positions, len(row)) // size) + 1
    blocks = (case.permutation("blocks", rows * width) + 1).int().view(rows, width)
    return call(blocks, torch.tensor(row), torch.tensor(positions), size)


def decode(case: Case) -> Call:
    """One token a row: it lies in the block that the row's own table has for its position."""
    size, rows = case.choice("block size", (3, 4)), case.size("rows", 2, 4)
    parts = [(row, size * row + case.size("place", 1, 2), 1) for row in range(rows)]
    return _call(case, parts, rows, case.choice("padding", (0, 1)), size)


def a_chunk(case: Case) -> Call:
    """Several tokens that continue a text, from the middle of a block into the next, beside rows that bring none."""
    size = case.choice("block size", (3, 5))
    start, tokens = size * case.size("blocks", 0, 2) + case.size("place", 0, 2), case.size("tokens", 3, 2 * size)
    return _call(case, [(0, start, tokens)], 2, 0, size)


def ragged(case: Case) -> Call:
    """Rows of many tokens and of one share a step, in any order; what pads it goes to slot 0."""
    size, order = 4, case.permutation("order", 3).tolist()
    parts = [(order[0], 0, case.size("tokens", 3, 4)), (order[1], case.size("context", 1, 3), 1), (order[2], 0, 2)]
    return _call(case, parts, 3, case.size("padding", 1, 2), size)


def any_step(case: Case) -> Call:  # noqa: PLR0911  one for each kind
    """Padding first, between, alone, positions in any order, many rows, slots beyond 32 bits, blocks of one token."""
    kind = case.turn(("padding first", "no order", "many rows", "far blocks", "blocks of one", "far positions",
                      "padding alone", "one token", 2**23 + 1, 2**24))  # fmt: skip
    if kind == "one token":
        return call(torch.tensor([[case.choice("block", (1, 7))]]).int(), torch.zeros(1).long(), torch.tensor([2]), 3)
    if isinstance(kind, int):  # positions around ends of large blocks, and slots that float64 does not know
        size, (first, second) = kind, case.permutation("rows", 2).tolist()
        tables = torch.tensor([[2**31 - 2, 5, 2**30 + 1], [9, 2**31 - 3, 7]]).int()
        places = torch.tensor([size - 1, size, 2 * size - 1, 2 * size, 3 * size - 1, 0])
        return call(tables, torch.tensor([first] * 2 + [second] * 3 + [2]), places, size)
    if kind == "padding alone":
        return _call(case, [], 2, 3, 4)
    if kind == "far positions":  # whose quotient float32 rounds up
        positions = torch.tensor([2, 16_385 * 1024 - 1, 16_386 * 1024 - 1])
        return call(case.permutation("table", 16_388)[None].int(), torch.zeros(3).long(), positions, 1024)
    parts = [(2, 0, 2), (0, case.size("context", 1, 5), 1), (2, 0, 1), (1, 0, 3)]
    if kind == "many rows":
        starts = case.ints("starts", 0, 20, 300).tolist()
        return _call(case, [(row, starts[row], 1) for row in case.permutation("rows", 300).tolist()], 300, 1, 4)
    if kind == "padding first":
        return _call(case, [(3, 0, 1), parts[0], (3, 0, 1), parts[1]], 3, 0, 4)
    tables, row, positions, size = _call(case, parts[1::2], 2, 0, 1 if kind == "blocks of one" else 4).args
    if kind == "no order":
        positions = torch.cat([positions[:1], case.permutation("positions", 4)[:3]])
    if kind == "far blocks":
        tables = tables + 2**29
    return call(tables, row, positions, size)


def any_mixture(case: Case) -> Call:
    """Some rows in any order, each from any position on, padding anywhere, and anything behind a text in the table."""
    size, rows = case.size("block size", 1, case.turn((7, 7, 7, 1))), case.size("rows", 1, case.turn((5, 5, 1)))
    here = case.permutation("order", rows)[: case.size("here", 1, rows)].tolist()
    starts, counts = (case.ints(name, low, 9, rows).tolist() for name, low in (("starts", 0), ("counts", 1)))
    parts = [(row, starts[row], counts[row]) for row in here]
    for at in case.ints("padding", 0, len(parts), case.size("padded", 0, case.turn((0, 3, 3)))).tolist():
        parts.insert(at, (rows, 0, 1))
    tables, *rest = _call(case, parts, rows, 0, size).args
    for row in range(rows):
        last = (starts[row] + counts[row] - 1) // size if row in here else -1
        tables[row, last + 1 :] = case.choice("behind", (0, 2**31 - 1))
    return call(tables, *rest)


CHECKS = (
    Check(decode, 3), Check(a_chunk, 3), Check(ragged, 3), Check(any_step, 10, wide=True),
    Check(any_mixture, 12, wide=True),
)  # fmt: skip
