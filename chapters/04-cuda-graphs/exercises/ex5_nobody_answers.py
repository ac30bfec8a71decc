"""Exercise 4.5: wrong answers and where they come from, correct variants, mutants that are none."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Right, Wrong


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
)  # fmt: skip


def with_where(position: Tensor, live: Tensor, tables: Tensor, null: int, block_size: int) -> tuple[Tensor, ...]:
    """Slots and lengths of live rows; then those of padding rows are replaced, at the last slot of the block."""
    real = live.bool()
    at = position.where(real, torch.zeros_like(position))
    column = torch.div(at, block_size, rounding_mode="floor")
    block = tables[torch.arange(len(tables)), column]
    slots = torch.where(real, block * block_size + at - column * block_size, null * block_size + block_size - 1)
    return slots, torch.where(real, at + 1, 2), torch.where(real[:, None], tables, torch.full_like(tables, null))


def in_products(position: Tensor, live: Tensor, tables: Tensor, null: int, block_size: int) -> tuple[Tensor, ...]:
    """Multiplied by live; the table's column by a comparison, in int32."""
    tables = (tables * live[:, None] + null * (1 - live[:, None])).int()
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
    "position = position.masked_fill(nobody, 1)": "another slot of the null block, and one token more of it read",
}
