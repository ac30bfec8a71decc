"""Exercise 3.4: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong

BLOCK = "table[positions // block_size].long()"
OFFSET = "((block * heads + head) * block_size + positions % block_size) * head_size"
WRONG = (
    Wrong.patch(
        "32-bits", "The table has 32 bits, so its products have room in 32 bits; the result can be widened later.",
        BLOCK, "table[positions // block_size]",
        "vllm-project/vllm#47671, #50427; flashinfer-ai/flashinfer#3136; lightseekorg/tokenspeed#501",
    ),
    Wrong.patch(
        "unsigned", "An offset that wraps is only negative; without its sign it is right.",
        f"{BLOCK}  # (N,) wide before it is multiplied\n    return {OFFSET}",
        f"table[positions // block_size].long()\n    return ({OFFSET}) & 0xFFFFFFFF",
        "an author's own slip: it moves the end of the pool from 2^31 to 2^32",
    ),
    Wrong.patch(
        "position-for-block", "A row's tokens lie one behind the other in the pool.",
        BLOCK, "positions.long() // block_size",
        "the dense cache of chapter 2",
    ),
    Wrong.patch(
        "heads-last", "The pool lies token by token, each with all its heads, as the model gives them.",
        OFFSET, "((block * block_size + positions % block_size) * heads + head) * head_size",
        "MiniMax-AI/MSA#14: NHD, right in engines with that layout, and HND, which this one has",
    ),
    Wrong.patch(
        "head-ignored", "A block begins at the same place for every head.", "block * heads + head", "block * heads",
        "an author's own slip: every head reads head 0",
    ),
    Wrong.patch(
        "one-head-a-block", "A block holds block_size vectors of head_size numbers.",
        OFFSET, "(block * block_size + positions % block_size) * head_size + head * 0",
        "an author's own slip: the heads left out of the stride",
    ),
    Wrong.patch(
        "heads-first", "Each head has a pool of its own, one behind the other.",
        OFFSET, "((head * (int(table.max()) + 1) + block) * block_size + positions % block_size) * head_size",
        "LMCache/LMCache#4729 lists eight orders of the same dimensions: a layout is a contract",
    ),
    Wrong.patch(
        "position-in-the-block", "A token's place in its block is its position.", "positions % block_size", "positions",
        "an author's own slip: right in a row's first block",
    ),
    Wrong.patch(
        "in-bytes", "Pointers count bytes.", OFFSET, f"({OFFSET}) * 2",
        "C's char pointers; Triton's and torch's count numbers of their type",
    ),
    Wrong.patch(
        "head-of-16-bits", "What a head's part takes fits in 16 bits.",
        "return ((block * heads + head) * block_size + positions % block_size) * head_size",
        "return block * (heads * block_size * head_size) + (positions % block_size * head_size "
        "+ torch.tensor(head * block_size * head_size).short())",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "narrow-where-it-fits", "Offsets that fit into 32 bits need no more.",
        ".long()  # (N,) wide before it is multiplied",
        ".long()\n"
        "    if int(block.max()) < 1000:\n"
        "        block = block.int()",
        "written to pass all checks that there were, and it did", unnamed="32-bits",
    ),
    Wrong.patch(
        "widened-last", "It is enough to widen before the last product.",
        'block_size].long()  # (N,) wide before it is multiplied\n'
        '    return ((block * heads + head) * block_size + positions % block_size) * head_size',
        'block_size]\n    return ((block * heads + head) * block_size + positions % block_size).long() * head_size',
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "divided-as-floats", "A quotient may be a float that is cut.",
        "table[positions // block_size]", "table[(positions / block_size).int()]",
        "a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "masked-place", "A block has a power of two of places, so a mask gives the place.",
        'positions % block_size',
        '(positions & (block_size - 1))',
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "place-in-32-bits", "What lies within a block is small.",
        "((block * heads + head) * block_size + positions % block_size) * head_size",
        "(block * heads + head) * block_size * head_size + positions % block_size * head_size",
        "a fifth reader who saw stub and text alone; it passed", unnamed="32-bits",
    ),
    Wrong.patch(
        "as-float64", "A float64 holds every whole number.",
        "].long()", "].double()",
        "an author's own slip: right below 2^53, were it cast back", unnamed="32-bits",
    ),
)  # fmt: skip


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


def of_a_view(table: Tensor, positions: Tensor, head: int, heads: int, block_size: int, head_size: int) -> Tensor:
    """All offsets of each block's head, from which the tokens' are picked."""
    first = (table.to(torch.int64) * heads + head) * block_size * head_size
    whole = first[:, None] + torch.arange(0, block_size * head_size, head_size, device=table.device)
    return whole.flatten()[positions.long()]


RIGHT = (Right(token_by_token), Right(by_slots), Right(of_a_view))

EQUIVALENT: dict[str, str] = {}


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


def _in_two_rows(table: Tensor, positions: Tensor, *sizes: int) -> tuple[Tensor | int, ...]:
    """Every second token belongs to row 1; what a row has no token in is the null block."""
    rows, at = torch.arange(len(positions), dtype=torch.int32) % 2, positions.long() // sizes[2]
    tables = torch.zeros(2, len(table), dtype=torch.int32)
    tables[rows.long(), at] = table[at]
    return (tables, rows, positions, *sizes)


def _in_one_row(tables: Tensor, rows: Tensor, positions: Tensor, *sizes: int) -> tuple[Tensor | int, ...]:
    return (tables.amax(0), positions, *sizes)


EDITIONS = (
    Edition(
        "rows-mixed", "the tokens belong to several rows, each with a table of its own", key_offsets,
        args=_in_two_rows, back=_in_one_row, result=lambda offsets, *args: offsets,
    ),
)  # fmt: skip
