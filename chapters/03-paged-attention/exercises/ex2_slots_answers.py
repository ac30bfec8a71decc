"""Exercise 3.2: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong

BLOCKS = "tables.gather(1, positions // block_size)"
SLOTS = "blocks * block_size + positions % block_size"
PADDING = "torch.arange(positions.shape[1], device=positions.device) > last[:, None]"
HIDDEN = "slots.masked_fill(padding, 0)"
WRONG = (
    Wrong.patch(
        "neighbours", "Neighbours in the text are neighbours in memory, from the row's first block on.",
        SLOTS, "tables[:, :1] * block_size + positions",
        "the dense cache of chapter 2, whose rows are contiguous",
    ),
    Wrong.patch(
        "neighbours-in-a-step", "What a step brings lies side by side, behind the slot of its first token.",
        SLOTS, "blocks[:, :1] * block_size + positions[:, :1] % block_size + "
        "torch.arange(positions.shape[1], device=positions.device)",
        "an author's own slip: true for as long as a chunk stays within a block",
    ),
    Wrong.patch(
        "first-rows-table", "Row 0's table serves the batch.", "tables.gather", "tables[:1].expand_as(tables).gather",
        "vllm-project/vllm#20426: identical rows hide it",
    ),
    Wrong.patch(
        "columns-for-positions", "A token's column in the step says where it stands.",
        BLOCKS, "tables.gather(1, (positions := positions - positions[:, :1]) // block_size)",
        "right in a prompt's first chunk, wrong in every later one",
    ),
    Wrong.patch(
        "place-left-out", "A block's number times its size is the slot.", SLOTS, "blocks * block_size + positions * 0",
        "an author's own slip: every token of a block over the one before",
    ),
    Wrong.patch(
        "block-as-slot", "The table holds slots.", SLOTS, "blocks + positions % block_size",
        "sgl-project/sglang, whose table has one entry a token: right there, wrong where an entry is a block",
    ),
    Wrong.patch(
        "place-and-block-swapped", "The quotient is the place, and the remainder says which block.",
        BLOCKS, "tables.gather(1, positions % block_size % tables.shape[1])",
        "an author's own slip: // and % in each other's place",
    ),
    Wrong.patch(
        "padding-is-written", "Padding is hidden by the mask, so it may be written like any token.", HIDDEN, "slots",
        "InternLM/lmdeploy#4569, sgl-project/sglang#32477",
    ),
    Wrong.patch(
        "minus-one", "-1 is no slot, so it means: write nowhere.", HIDDEN, "slots.masked_fill(padding, -1)",
        "vllm-project/vllm#43810: -1 // size is the last block, and -1 % size its last place",
    ),
    Wrong.patch(
        "padding-to-the-last", "Padding may go where the row's last token goes.",
        HIDDEN, "torch.where(padding, slots.gather(1, last.clamp(min=0)[:, None]), slots)",
        "an author's own slip: which of two writes to one slot stays is not defined",
    ),
    Wrong.patch(
        "32-bits", "The numbers in the table have 32 bits, so a slot has 32 bits too.", HIDDEN, f"{HIDDEN}.int()",
        "an author's own slip: torch writes by an index of 64 bits alone",
    ),
    Wrong.patch(
        "last-is-a-length", "`last` counts the real columns.", PADDING, PADDING.replace(">", ">="),
        "huggingface/transformers#3167: a length and an index, one apart",
    ),
    Wrong.patch(
        "padding-of-row-0", "Padding begins at the same column in all rows.", PADDING,
        "(torch.arange(positions.shape[1], device=positions.device) > last[0]).expand(positions.shape)",
        "EvolvingLMMs-Lab/lmms-eval#1423: what holds for the first row, for all",
    ),
    Wrong.patch(
        "nobody-is-row-0", "A row's last column is at least 0, so a padding row writes one token.",
        "last[:, None]", "last.clamp(min=0)[:, None]",
        "an author's own slip in this engine, before its padding rows had no column at all",
    ),
)  # fmt: skip


def token_by_token(tables: Tensor, positions: Tensor, last: Tensor, block_size: int) -> Tensor:
    """Python loops, and divmod."""
    slots = []
    for table, places, end in zip(tables.tolist(), positions.tolist(), last.tolist(), strict=True):
        row = []
        for column, position in enumerate(places):
            block, place = divmod(position, block_size)
            row.append(table[block] * block_size + place if column <= end else 0)
        slots.append(row)
    return torch.tensor(slots)


def all_slots_first(tables: Tensor, positions: Tensor, last: Tensor, block_size: int) -> Tensor:
    """The slots of each row's whole room are laid out, then picked by position; int32 up to the last line."""
    room = (
        tables[:, :, None] * block_size + torch.arange(block_size, dtype=torch.int32, device=tables.device)
    ).flatten(1)
    real = F.one_hot(last + 1, positions.shape[1] + 1).flip(1).cumsum(1).flip(1)[:, 1:]
    return (room.gather(1, positions) * real.int()).long()


def by_index(tables: Tensor, positions: Tensor, last: Tensor, block_size: int) -> Tensor:
    """Two index tensors, and an assignment in place."""
    rows = torch.arange(len(tables), device=tables.device).unsqueeze(1)
    slots = tables.long()[rows, positions.div(block_size, rounding_mode="floor")].mul_(block_size)
    slots += positions.remainder(block_size)
    for row, end in enumerate(last.tolist()):
        slots[row, end + 1 :] = 0
    return slots


RIGHT = (Right(token_by_token), Right(all_slots_first), Right(by_index))

EQUIVALENT: dict[str, str] = {}


def places(tables: Tensor, positions: Tensor, last: Tensor, block_size: int) -> Tensor:
    """Where the keys and values of a step are written: (B, T, 2) int64, of each column its block and the place in it.

    tables (B, width) int32: the blocks of each row, in the order of its text; entries that are not in use are 0.
    positions (B, T) int64: of each column in its row's text; there is a table entry for each of them. last (B,) int64:
    the column of each row's last real token, -1 in a row that has none. A block has block_size places. Columns that are
    padding are written to place 0 of block 0, the null block.
    """
    pairs = torch.stack((tables.gather(1, positions // block_size).long(), positions % block_size), -1)
    real = torch.arange(positions.shape[1], device=positions.device) <= last[:, None]
    return pairs * real[:, :, None]


def _pairs(slots: Tensor, tables: Tensor, positions: Tensor, last: Tensor, block_size: int) -> Tensor:
    return torch.stack((slots // block_size, slots % block_size), -1)


EDITIONS = (
    Edition(
        "block-and-place", "the answer is a pair of block and place for each column, not a slot", places,
        args=lambda *args: args, back=lambda *args: args, result=_pairs, axes=("row", "column", "of the pair"),
    ),
)  # fmt: skip
