"""Exercise 3.2: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong

REAL = "row < len(tables)"
LINE = "row.clamp(max=len(tables) - 1)"
BLOCKS = f"tables[{LINE}, which]"
SLOTS = "block * block_size + place"
HIDDEN = f"torch.where({REAL}, slots, 0)"
WRONG = (
    Wrong.patch(
        "neighbours", "Neighbours in the text are neighbours in memory, from the row's first block on.",
        SLOTS, f"tables[{LINE}, 0] * block_size + positions",
        "the dense cache of chapter 2, whose rows are contiguous",
    ),
    Wrong.patch(
        "neighbours-in-a-step", "What a step brings lies side by side, behind the slot of its first token.",
        HIDDEN, f"torch.where({REAL}, slots[:1] + torch.arange(len(slots), device=slots.device), 0)",
        "an author's own slip: true of one row's chunk, for as long as it stays within a block",
    ),
    Wrong.patch(
        "first-rows-table", "Row 0's table serves the batch.", LINE, "row.clamp(max=0)",
        "vllm-project/vllm#20426: identical rows hide it",
    ),
    Wrong.patch(
        "rows-as-they-come", "The first row of a step is row 0 of the cache, the second is row 1.",
        LINE, "torch.unique_consecutive(row, return_inverse=True)[1].clamp(max=len(tables) - 1)",
        "an author's own slip: right in decode, and in a prefill of all rows",
    ),
    Wrong.patch(
        "token-n-is-row-n", "Token n of a step is row n's.",
        LINE, "torch.arange(len(row), device=row.device).clamp(max=len(tables) - 1)",
        "an author's own slip: decode's rule, taken for every step",
    ),
    Wrong.patch(
        "columns-for-positions", "A token's place in the step says where it stands.",
        "positions // block_size, positions % block_size",
        "(columns := torch.arange(len(row), device=row.device)) // block_size, columns % block_size",
        "right in the first chunk of a step's first row, wrong in every other",
    ),
    Wrong.patch(
        "newest-block", "What is new is written into the row's last block.",
        BLOCKS, f"tables[{LINE}, ((row[:, None] == row) * positions).amax(1) // block_size]",
        "GeeeekExplorer/nano-vllm, prepare_decode, whose slots are those of block_table[-1]: right in decode",
    ),
    Wrong.patch(
        "place-left-out", "A block's number times its size is the slot.", SLOTS, "block * block_size + place * 0",
        "an author's own slip: every token of a block over the one before",
    ),
    Wrong.patch(
        "block-as-slot", "The table holds slots.", SLOTS, "block + place",
        "sgl-project/sglang, whose table has one entry a token: right there, wrong where an entry is a block",
    ),
    Wrong.patch(
        "place-and-block-swapped", "The quotient is the place, and the remainder says which block.",
        BLOCKS, f"tables[{LINE}, place % tables.shape[1]]",
        "an author's own slip: // and % in each other's place",
    ),
    Wrong.patch(
        "padding-is-written", "Padding is never read, so it may be written like any token.", HIDDEN, "slots",
        "InternLM/lmdeploy#4569, sgl-project/sglang#32477",
    ),
    Wrong.patch(
        "minus-one", "-1 is no slot, so it means: write nowhere.", HIDDEN, f"torch.where({REAL}, slots, -1)",
        "vllm-project/vllm#43810: -1 // size is the last block, and -1 % size its last place",
    ),
    Wrong.patch(
        "padding-to-the-last", "Padding may go where the last token goes.",
        HIDDEN, f"torch.where({REAL}, slots, slots[{REAL}][-1])",
        "an author's own slip: which of two writes to one slot stays is not defined",
    ),
    Wrong.patch(
        "position-0-is-padding", "Padding stands at position 0, so what stands there is padding.",
        REAL, "positions > 0",
        "an author's own slip: every prompt begins there, too",
    ),
    Wrong.patch(
        "last-row-is-the-dummy", "The last line of the tables is the dummy row's.", REAL, "row < len(tables) - 1",
        "this engine's own tables, which have a line for the dummy row; these have none",
    ),
    Wrong.patch(
        "32-bits", "The numbers in the table have 32 bits, so a slot has 32 bits too.", HIDDEN, f"{HIDDEN}.int()",
        "an author's own slip: torch writes by an index of 64 bits alone",
    ),
    Wrong.patch(
        "padding-is-last", "Padding stands behind all real tokens.",
        "return torch.where(row < len(tables), slots, 0)",
        "n = int((row < len(tables)).sum())\n"
        "    slots[n:] = 0\n"
        "    return slots",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "counted-from-the-first", "Positions count on from a row's first.",
        "which, place = positions // block_size, positions % block_size",
        "first = torch.ones_like(row, dtype=torch.bool)\n"
        "    first[1:] = row[1:] != row[:-1]\n"
        "    at = torch.arange(len(row))\n"
        "    start = torch.where(first, at, 0).cummax(0).values\n"
        "    positions = positions[start] + at - start\n"
        "    which, place = positions // block_size, positions % block_size",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "divided-as-floats", "A quotient may be a float that is cut.",
        "positions // block_size, positions", "(positions / block_size).long(), positions",
        "a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "multiplied-in-32-bits", "A slot of 64 bits may be multiplied in 32.",
        'which].long()',
        'which]',
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "looked-up-like-any", "The tables have a line for padding, as the engine's have.",
        LINE, "row", "a reader who took section 3's line as it is",
    ),
)  # fmt: skip


def token_by_token(tables: Tensor, row: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Python loops, and divmod."""
    lines, slots = tables.tolist(), []
    for line, position in zip(row.tolist(), positions.tolist(), strict=True):
        block, place = divmod(position, block_size)
        slots.append(lines[line][block] * block_size + place if line < len(lines) else 0)
    return torch.tensor(slots)


def with_a_dummy_row(tables: Tensor, row: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """The engine's way: one more line of tables, all zeros, makes padding a token like any other."""
    lines = F.pad(tables, (0, 0, 0, 1)).long()
    return torch.add(positions.remainder(block_size), lines[row, positions.div(block_size, rounding_mode="floor")],
                     alpha=block_size)  # fmt: skip


def all_slots_first(tables: Tensor, row: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """The slots of each row's whole room are laid out end to end, then picked by row and position."""
    places = torch.arange(block_size, dtype=torch.int32, device=tables.device)
    room = (tables[:, :, None].long() * block_size + places).flatten()
    width = tables.shape[1] * block_size
    mine = row * width + positions
    return room.take(mine % len(room)).to(torch.int64) * (mine < len(room)).long()


RIGHT = (Right(token_by_token), Right(with_a_dummy_row), Right(all_slots_first))

EQUIVALENT: dict[str, str] = {}


def places(tables: Tensor, row: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Where a step's N tokens, one at least, are written: (N, 2) int64, of each token its block and its place.

    tables (rows, width) int32: the blocks of each row, in the order of its text; entries behind the text may name any
    block. row, positions (N,) int64: of each token, its row and its position in that row's text; there is a table entry
    for each position. Each row's tokens stand side by side, and rows in any order. A block has block_size places.
    Padding, at position 0 of row `rows`, is written to place 0 of block 0, the null block.
    """
    lines = torch.cat((tables, torch.zeros_like(tables[:1]))).long()
    return torch.stack((lines[row, positions // block_size], positions % block_size), -1)


def _pairs(slots: Tensor, tables: Tensor, row: Tensor, positions: Tensor, block_size: int) -> Tensor:
    return torch.stack((slots // block_size, slots % block_size), -1)


EDITIONS = (
    Edition(
        "block-and-place", "the answer is a pair of block and place for each token, not a slot", places,
        args=lambda *args: args, back=lambda *args: args, result=_pairs, axes=("token", "of the pair"),
    ),
)  # fmt: skip
