"""Exercise 4.5: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed


def own_blocks(position: Tensor, live: Tensor, tables: Tensor, null: int, block_size: int) -> tuple[Tensor, ...]:
    """A padding row starts over at position 0: nothing stands before it, so its table does no harm."""
    position = position * live
    block = tables.gather(1, position[:, None] // block_size)[:, 0]
    return block * block_size + position % block_size, position + 1, tables


def as_row_0(position: Tensor, live: Tensor, tables: Tensor, null: int, block_size: int) -> tuple[Tensor, ...]:
    """A padding row is filled with a copy of a row that is right."""
    first = live.argmax().view(1)
    position = torch.where(live == 1, position, position.index_select(0, first))
    tables = torch.where(live[:, None] == 1, tables, tables.index_select(0, first))
    block = tables.gather(1, position[:, None] // block_size)[:, 0]
    return block * block_size + position % block_size, position + 1, tables


def length_kept(position: Tensor, live: Tensor, tables: Tensor, null: int, block_size: int) -> tuple[Tensor, ...]:
    """How many tokens a padding row reads is of no interest, as they are those of the null block."""
    nobody = live == 0
    tables = tables.masked_fill(nobody[:, None], null)
    at = position.masked_fill(nobody, 0)
    block = tables.gather(1, at[:, None] // block_size)[:, 0]
    return block * block_size + at % block_size, position.clamp(min=0) + 1, tables


SLOTS = "block * block_size + position % block_size"
TABLES = "tables = tables.masked_fill(nobody[:, None], null)"
BODY = f"""{TABLES}
    position = position.masked_fill(nobody, 0)
    block = tables.gather"""
CLAMPED = """position = position.clamp(0, tables.shape[1] * block_size - 1)
    block = tables.gather"""
WRONG = (
    Wrong.patch(
        "all-rows-alike", "What a padding row does is of no interest.", BODY, CLAMPED,
        "InternLM/lmdeploy#4569, GeeeekExplorer/nano-vllm#190: rows past the batch kept another batch's blocks",
    ),
    Wrong(own_blocks, "GeeeekExplorer/nano-vllm@bb823b3: lengths are made anew at each step, block tables are not"),
    Wrong(as_row_0, "an author's own slip: its token is another one, and both are written to one slot"),
    Wrong.patch(
        "minus-one", "Slot -1 is nowhere.", f"return {SLOTS}", f"return ({SLOTS}).masked_fill(nobody, -1)",
        "vllm-project/vllm#43810: by Python's rules -1 is the last slot of the last block, and it was live",
    ),
    Wrong.patch(
        "slot-0", "Slot 0 is always free for padding.", f"return {SLOTS}", f"return ({SLOTS}).masked_fill(nobody, 0)",
        "vllm-project/vllm#38719: warm-up wrote garbage to slot 0; sgl-project/sglang#36880",
    ),
    Wrong.patch(
        "null-as-slot", "The null block's number is where padding goes.",
        f"return {SLOTS}", f"return torch.where(nobody, null, {SLOTS})",
        "an author's own slip: a block and a slot confused, which is right where the null block is block 0",
    ),
    Wrong.patch(
        "length-0", "A padding row reads nothing, so its length is 0.", "position + 1, tables",
        "(position + 1) * live, tables",
        "sgl-project/sglang#1469, #1779, vllm-project/vllm#57094: 0 / 0 in a padding row, and a scale over the batch",
    ),
    Wrong(length_kept, "nano-vllm-v1#3, its other half: a row that has left, and how much it read"),
    Wrong.patch(
        "slots-in-32-bits", "A slot is a number of 32 bits.", f"return {SLOTS}", f"return ({SLOTS}).int()",
        "vllm-project/vllm#47671: offsets that no longer fit, in a pool that is large enough",
        unnamed="slot-0",
    ),
    Wrong.patch(
        "table-of-minus-one", "A table that names no block is full of -1.", TABLES, TABLES.replace("null)", "-1)"),
        "vllm-project/vllm#35969, #38436: a padding row's table, and block_table[-1] that was read",
    ),
    Wrong.patch(
        "position-kept", "With the null block in its table, a row may stand where it likes.",
        "    position = position.masked_fill(nobody, 0)\n", "",
        "nano-vllm-v1#3: a position past the end of the table",
    ),
    Wrong.patch(
        "only-the-write", "What a padding row reads is dropped, so only its slot matters.",
        BODY, BODY.replace(TABLES, "own = " + TABLES[9:]).replace("tables.gather", "own.gather"),
        "sgl-project/sglang#32477: NaN out of undefined pages",
    ),
    Wrong.patch(
        "counted-by-the-host", "How many rows are live is one number.", "nobody = live == 0",
        "nobody = torch.arange(len(live)) >= int(live.sum())",
        "pytorch's notes on CUDA graphs: .item() ends a capture; and baked it would be the first batch's number",
    ),
    Wrong.patch(
        "live-rows-come-first", "Padding rows are the last ones, so their number tells which they are.",
        "nobody = live == 0", "nobody = torch.arange(len(live)) >= live.sum()",
        "right in this engine, where the last row moves into a gap; wrong wherever one does not",
    ),
    Wrong.patch(
        "newest-left-out", "A row reads the tokens before its newest.", "position + 1, tables",
        "position.clamp(min=1), tables", "EricLBuehler/candle-vllm#56; the newest is written before it is read",
    ),
    Wrong.patch(
        "some-row-is-live", "A step without a live row is not run.",
        "nobody = live == 0",
        "nobody = (live == 0) & (live.sum() > 0)",
        "written to pass all checks that there were, and it did", unnamed="as-row-0",
    ),
    Wrong.patch(
        "tables-overwritten", "The tables of padding rows are nobody's, so they may be overwritten.",
        'tables = tables.masked_fill(',
        'tables = tables.masked_fill_(',
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "position-of-16-bits", 'A position is a small number.',
        'position = position.masked_fill(nobody, 0)',
        'position = position.masked_fill(nobody, 0).to(torch.float16).long()',
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "slots-as-floats", "float64 holds every slot.", f"return {SLOTS}",
        "return (block.double() * block_size + position % block_size).long()",
        "written to pass all checks that there were, and it did", unnamed="slot-0",
    ),
    Wrong.patch(
        "no-slot-below-0", "Slots count from 0.", "return block * block_size", "return block.clamp(min=0) * block_size",
        "written to pass all checks that there were, and it did", unnamed="slot-0",
    ),
)  # fmt: skip


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


def all_in_place(position: Tensor, live: Tensor, tables: Tensor, null: int, block_size: int) -> tuple[Tensor, ...]:
    """Copies, written in place under a mask; every padding row has a slot of its own while there are some."""
    tables, position, nobody = tables.clone(), position.clone(), ~live.bool()
    tables.masked_fill_(nobody[:, None], null)
    position.copy_(torch.where(nobody, torch.arange(len(live)) % block_size, position))
    slots = torch.take_along_dim(tables, (position // block_size)[:, None], 1).squeeze(1).mul_(block_size)
    return slots.add_(position.remainder(block_size)), position.add(1), tables


RIGHT = (Right(with_where), Right(in_products), Right(all_in_place))

EQUIVALENT = {
    "block = tables.gather(1, position[:, None] // block_size)[:, -1]": "there is one column: the first and the last",
}


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


def _columns(position: Tensor, live: Tensor, tables: Tensor, null: int, block_size: int) -> tuple[Any, ...]:
    return position, live, tables.T, null, block_size


def _in_rows(found: tuple[Tensor, Tensor], *args: object) -> tuple[Tensor, ...]:
    tables, (slots, lengths) = found
    return slots, lengths, tables.T


def _by_columns(answer: Function) -> Function:
    return Formed(answer, _columns, _in_rows)


EDITIONS = (
    Edition(
        "tables-in-columns",
        "tables are (width, B), a column a row; they come first in the result, and slots and lengths are one tensor "
        "(2, B)", by_columns, played=_by_columns,
    ),
)  # fmt: skip
