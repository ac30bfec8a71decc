"""Exercise 3.1: which blocks a row takes before a step writes into them."""

from __future__ import annotations

from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, call


def grow(
    owned: list[list[int]], lengths: list[int], free: list[int], block_size: int
) -> tuple[list[list[int]], list[int]]:
    """Give each row the blocks that it lacks for the next step -> (each row's blocks, the blocks that are still free).

    owned: each row's blocks, in the order of its text. lengths: each row's tokens, with those that the step is about to
    write counted already; a block holds `block_size` tokens. free: the free blocks, by number, which may be 0 here.
    Take the last of the list first, for row 0 before row 1. A row keeps the blocks that it has, in their order, even
    where it has more than it needs. You may change the lists. RuntimeError where a block is needed and none is free.
    Numbers may be of any size, beyond 64 bits too.
    """
    owned, free = [list(blocks) for blocks in owned], list(free)
    for blocks, length in zip(owned, lengths, strict=True):
        while len(blocks) * block_size < length:
            if not free:
                raise RuntimeError("no free block")
            blocks.append(free.pop())
    return owned, free


def swap(mine: Function) -> Places:
    """BlockManager.grow asks it, slot by slot, and takes what it answers."""

    def grow_slot(self: Any, slot: int, tokens: int) -> None:
        owned = self.owned[slot]
        taken = [self.allocate() for _ in range(self.blocks_of(tokens) - len(owned))]  # offered again, to be counted
        (after,), free = mine([list(owned)], [tokens], self.free + taken[::-1], self.block_size)
        self.reserved[slot] -= len(after) - len(owned)
        owned[:], self.free[:] = after, free

    return {"nanoinfer.cache.blocks:BlockManager.grow": grow_slot}


EXERCISE = Spec(
    reference=grow,
    lines=7,
    example=lambda: call([[7], [2, 5]], [5, 8], [9, 3, 6], 4),
    pure=False,  # the lists may be changed
    section="When a row takes a block",
    axes=(("owned", "row", "block"), ("free", "place")),
    typed=True,
    exact=True,
    refuse=("nanoinfer.cache.blocks:BlockManager.grow",),
    swap=swap,
)


def _rows(case: Case, lengths: list[int], had: list[int], block_size: int, spare: int = 2) -> Call:
    """Rows that own blocks for `had` tokens each and are to hold `lengths`; blocks are handed out in a random order."""
    owns = [-(-tokens // block_size) for tokens in had]
    needs = [max(0, -(-length // block_size) - own) for length, own in zip(lengths, owns, strict=True)]
    order = case.permutation("blocks", sum(owns) + sum(needs) + spare).tolist()
    owned = [[order.pop() for _ in range(own)] for own in owns]
    return call(owned, lengths, order, block_size)


def one_more_token(case: Case) -> Call:
    """In decode a row takes a block where its newest token is the first of one, and only there."""
    size = case.size("block size", 1, 4)
    had = [size * case.size("blocks", 1, 3) + more for more in (-1, 0, 1)]
    had = [had[at] for at in case.permutation("order", 3).tolist()]
    return _rows(case, [tokens + 1 for tokens in had], had, size)


def prompts(case: Case) -> Call:
    """A prompt takes all its blocks at once, in the order in which they are free; a row keeps those it has to spare."""
    size = case.size("block size", 3, 5)
    new = [size * blocks + more for blocks, more in ((case.size("blocks", 2, 3), 0), (1, 2), (1, 1))]
    lengths = [*new[: case.size("prompts", 1, 3)], 2]
    order = case.permutation("order", len(lengths)).tolist()
    had = [*[0] * (len(lengths) - 1), size * (1 + case.size("to spare", 1, 2))]
    return _rows(case, [lengths[at] for at in order], [had[at] for at in order], size)


def no_block_free(case: Case) -> Call:
    """Where blocks run out that is an error, whatever rows before have taken; where the last suffices it is none."""
    size, rows = case.size("block size", 2, 4), case.size("rows", 1, 3)
    asked = _rows(case, [size + 1] * rows, [size] * rows, size, spare=0)
    if case.choice("lacks", (True, False)):
        del asked.args[2][0]
    return asked


def any_rows(case: Case) -> Call:  # noqa: PLR0911  one for each kind
    """No row, many, long texts, large blocks, empty ones, any numbers; none free: none is needed, or another has it."""
    kind = case.turn(("no need", "many rows", "long", "empty", "two rows", "two rows", "another has", "block 0",
                      "empty between", "any numbers", "large blocks", "beyond floats", "no row"))  # fmt: skip
    size = case.size("block size", 1, 3)
    if kind == "block 0":
        return call([[], [2]], [size, 2 * size], [0, -1], size)
    if kind == "empty between":
        return _rows(case, [0, size, 0, 2 * size + 1, 0], [0, 0, 0, size, 0], size)
    if kind == "no need":
        return _rows(case, [size], [2 * size], size, spare=0)
    if kind == "another has":
        asked = _rows(case, [1, size + 1], [3 * size, size], size, spare=0)
        asked.args[2].clear()
        return asked
    if kind == "many rows":
        had = case.ints("had", 0, 4, 300) * size
        return _rows(case, (had + case.ints("more", 0, 2, 300)).tolist(), had.tolist(), size)
    if kind == "long":
        return _rows(case, [4200 * size + 1, 40 * size], [0, 35 * size], size, spare=0)
    if kind == "large blocks":
        return _rows(case, [20_001, 2], [20_000, 0], 20_000)
    if kind == "beyond floats":  # n / block_size is a whole number where n is one token more
        large = case.choice("large", (2**53, 2**63))
        return _rows(case, [large + 1, 2 * large, 3 * large + 1, large - 1], [large, 0, large, 0], large)
    if kind == "no row":
        return call([], [], [4, 2], size)
    if kind == "any numbers":
        owned, lengths, free, _ = _rows(case, [3 * size, 2 * size], [size, 0], size).args
        lists = [[(2 ** (53 + 11 * (n % 3 == 0)) + n) * (-1) ** n for n in blocks] for blocks in (*owned, free)]
        return call(lists[:-1], lengths, lists[-1], size)
    if kind == "two rows":
        return _rows(case, [9, 8], [6, 8], 2)
    return _rows(case, [0, 1, 0], [0, 0, size], size)


def any_mixture(case: Case) -> Call:
    """Rows of all kinds side by side, with blocks to spare, just enough, or one too few."""
    size, rows = case.size("block size", 1, 5), case.size("rows", 1, 6)
    lengths, had = (case.ints(name, 0, 4 * size, rows).tolist() for name in ("lengths", "had"))
    lengths = [length * case.turn((1,) * 7 + (0,)) for length in lengths]  # once all are 0
    asked = _rows(case, lengths, had, size, spare=case.turn((0, 3, 0)))
    del asked.args[2][: case.turn((1, 0, 0, 0))]
    return asked


CHECKS = (
    Check(one_more_token, 4), Check(prompts, 4), Check(no_block_free, 4), Check(any_rows, 13, wide=True),
    Check(any_mixture, 12, wide=True),
)  # fmt: skip
