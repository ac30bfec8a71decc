"""Exercise 3.1: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from nanocourse.exercises.exercise import edition

Rows = list[list[int]]


def by_division(owned: Rows, lengths: list[int], free: list[int], block_size: int) -> tuple[Rows, list[int]]:
    """The number that is lacking is computed, and taken in one slice."""
    after, left = [], free[:]
    for blocks, length in zip(owned, lengths, strict=True):
        lacking = max(0, (length + block_size - 1) // block_size - len(blocks))
        if lacking > len(left):
            raise RuntimeError("too few blocks")
        after.append(blocks + left[len(left) - lacking :][::-1])
        left = left[: len(left) - lacking]
    return after, left


def in_place(owned: Rows, lengths: list[int], free: list[int], block_size: int) -> tuple[Rows, list[int]]:
    """Recursion, and an exception of the empty list turned into the one that is asked for."""
    if not lengths:
        return [], list(free)
    blocks, left = list(owned[0]), list(free)
    try:
        while block_size * len(blocks) <= lengths[0] - 1:
            blocks += [left.pop()]
    except IndexError:
        raise RuntimeError("none is free") from None
    rest, left = in_place(owned[1:], lengths[1:], left, block_size)
    return [blocks, *rest], left


EQUIVALENT = {
    "without: owned, free = ([list(blocks) for blocks in owned], list(free))": (
        "a solution gets lists of its own, so whether it changes them cannot be seen, and does no harm"
    ),
}


def _begun(result: tuple[Rows, list[int]], owned: Rows, *args: object) -> list[tuple[int, int, int]]:
    return [
        (row, place, block)
        for row, blocks in enumerate(result[0])
        for place, block in enumerate(blocks)
        if place >= len(owned[row]) or owned[row][place] != block
    ]


@edition(
    "blocks-begun",
    "the answer is the list of blocks that are begun, not the rows' lists",
    result=_begun,
    axes=("block", "number"),
)
def blocks_begun(owned: Rows, lengths: list[int], free: list[int], block_size: int) -> list[tuple[int, int, int]]:
    """The blocks that are begun, in the order in which they are taken: (row, place in the row's list, block).

    owned: each row's blocks, in the order of its text. lengths: each row's tokens, with those that the step is about to
    write counted already; a block holds `block_size` tokens. free: the free blocks; the last of them is taken first,
    and row 0 takes before row 1. A row that has room takes none. The lists may be changed. RuntimeError where a block
    is needed and none is free.
    """
    left, begun = list(free), []
    for row, (blocks, length) in enumerate(zip(owned, lengths, strict=True)):
        for place in range(len(blocks), -(-length // block_size)):
            if not left:
                raise RuntimeError("no free block")
            begun.append((row, place, left.pop()))
    return begun
