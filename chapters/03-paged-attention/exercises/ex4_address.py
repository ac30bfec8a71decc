"""Exercise 3.4: how many numbers into the pool a token's key begins."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Spec, call


def key_offsets(table: Tensor, positions: Tensor, head: int, heads: int, block_size: int, head_size: int) -> Tensor:
    """How many numbers of the pool stand before the key of `head`, for each token: (N,) int64.

    table (width,) int32: the blocks of one row. positions (N,) int32: of tokens in its text, one at least. The pool of
    one layer has the shape (blocks, heads, block_size, head_size), and lies in memory in this order, without gaps. It
    may hold as many numbers as 63 bits can count, in one block more than 32 bits can.
    """
    block = table[positions // block_size].long()  # (N,) wide before it is multiplied
    return ((block * heads + head) * block_size + positions % block_size) * head_size


def _example() -> Call:
    table = torch.tensor([3, 1], dtype=torch.int32)
    return call(table, torch.tensor([0, 1, 4], dtype=torch.int32), 1, 2, 4, 8)


EXERCISE = Spec(
    reference=key_offsets,
    lines=2,
    example=_example,
    section="Which program reads which page",
    axes=("token",),
    typed=True,
)


def layout(case: Case) -> Call:
    """The key is found by block, head and place, in a pool of any sizes."""
    size, count, heads = case.turn((2, 3, 4, 6)), case.size("tokens", 1, 4), case.size("heads", 2, 5)
    table, positions = case.permutation("table", 4).int(), case.ints("positions", size, 4 * size - 1, count).int()
    head = 1 + int(case.ints("head", 0, heads - 2, 1))
    return call(table, positions, head, heads, size, case.choice("width", (3, 5)))


def large_pool(case: Case) -> Call:
    """The last blocks of a pool are found too, where its numbers, or its keys, or its blocks times heads pass 2^31."""
    heads, size, width = case.turn(((12, 16, 64), (25, 16, 64), (12, 64, 64), (12, 16, 1), (25, 1, 1)))
    first = case.choice("times 2^31", (1, 3, 5)) * 2**31 // (heads * size * width) + 1
    table = (case.permutation("table", 3) + first).int()
    return call(table, size * case.permutation("blocks", 3)[: case.size("tokens", 1, 3)].int(), 0, heads, size, width)


SIZES = ("block size", "heads", "width", "blocks", "tokens")
LARGE = (  # heads, tokens and width of a block of which one product alone is beyond 2^31, or an offset beyond 2^53
    (1, 2**15, 2**17), (2, 2**20, 2**12), (2**20, 1, 2**12), (2**16 + 1, 2**15, 1), (2**14 + 1, 33, 129),
)  # fmt: skip


def any_text(case: Case) -> Call:
    """Texts of many blocks and tokens beyond 16 bits, the last head of many, one block of one token."""
    kind = case.turn(("far", "long", "last head", "one", "long", *LARGE, *SIZES, "", "equal"))
    if kind in ("", "equal", *SIZES):  # one size is 1, the others are any; any head, tokens in any order, one twice
        size, heads, width, blocks, tokens = (
            case.size(name, 4 if kind == "equal" else 1, 1 if name == kind else 4 if kind == "equal" else 7)
            for name in SIZES
        )
        table, positions = case.permutation("table", blocks).int(), case.ints("positions", 0, blocks * size - 1, tokens)
        positions = positions.int()
        return call(table, positions, int(case.ints("head", 0, heads - 1)), heads, size, width)
    if kind in LARGE:  # places at the ends of blocks
        heads, size, width = kind
        positions = torch.tensor([2 * size - 1, 0, size, size - 1, 2 * size - 1]).int()
        if kind == LARGE[0]:  # in block 0
            return call(torch.tensor([0]).int(), positions[positions < size], 0, heads, size, width)
        last = min(2**31, 2**63 // (heads * size * width)) - 1
        return call(torch.tensor([last, last // 2]).int(), positions, heads - 1, heads, size, width)
    if kind == "far":  # positions whose quotients float32 rounds up
        positions = torch.tensor([16_385 * 1024 - 1, 5, 16_386 * 1024 - 1, 5]).int()
        return call(case.permutation("table", 16_388).int(), positions, 1, 2, 1024, 128)
    if kind == "one":
        return call(torch.tensor([9, 5]).int(), torch.tensor([1]).int(), 0, 1, 1, case.choice("width", (1, 4)))
    size, heads, width = (64, 2, 3) if kind == "long" else (16, 96, 128)
    table = case.permutation("table", 1000).int() + (0 if kind == "long" else 20_000)
    positions = case.ints("positions", 0, 1000 * size - 1, 5).int()
    positions[0] = 1000 * size - 1
    return call(table, positions, heads - 1, heads, size, width)


CHECKS = (Check(layout, 4), Check(large_pool, 6), Check(any_text, 7 + len(SIZES) + len(LARGE), wide=True))
