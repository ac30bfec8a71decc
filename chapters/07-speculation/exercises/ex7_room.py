"""Exercise 7.7: blocks for drafts: taken where nobody else wants them, and given back."""

from __future__ import annotations

from nanocourse.exercises import Call, Case, Check, Spec, call


def draft_room(
    rows: list[tuple[int, int]], wishes: list[int], right: list[int], free: int, block_size: int
) -> tuple[list[int], list[int], list[int], int]:
    """How many drafts each row brings, the blocks it holds in the step and after it, and the free blocks after it.

    rows: (written, promised) of each row that goes on, first come, first served. written: how many tokens of its
    text have keys and values in its blocks, at least 1; it holds as many blocks as these need, of `block_size` tokens
    each. promised: how many blocks it is promised in all, those that it holds among them: enough for one token more at
    least. free: the blocks that nobody holds; what is promised and not held yet is among them. wishes: how many drafts
    each row has.
    In the step a row writes its newest token and the drafts that it brings. It brings as many as it has, or as many as
    there is room for: in the blocks that it holds, in those that it is promised, and then in free ones that are
    promised to nobody, which rows after it cannot take any more. It takes blocks only as far as it needs them.
    right: how many of each row's drafts, from the first on, would be kept if it brought them all. After the step a row
    has its newest token and the drafts that were brought and kept, in as few blocks as these need with all before them.
    The token that is chosen after them is not written yet. All other blocks of the row are given back.
    """
    over = free + sum(-(-written // block_size) - promised for written, promised in rows)
    brought: list[int] = []
    held: list[int] = []
    kept: list[int] = []
    for (written, promised), wish, count in zip(rows, wishes, right, strict=True):
        drafts = min(wish, (promised + over) * block_size - written - 1)
        blocks = -(-(written + 1 + drafts) // block_size)
        over -= max(0, blocks - promised)
        brought.append(drafts)
        held.append(blocks)
        kept.append(-(-(written + 1 + min(drafts, count)) // block_size))
        free += -(-written // block_size) - kept[-1]
    return brought, held, kept, free


EXERCISE = Spec(
    reference=draft_room,
    lines=16,
    example=lambda: call([(7, 2), (4, 3), (2, 1)], [4, 3, 5], [1, 3, 0], 4, 4),
    section="What a rejected token leaves behind",
    axes=(("brought", "row"), ("held", "row"), ("kept", "row"), ("free blocks",)),
    typed=True,
    refuse=("nanoinfer.speculate.engine:DraftEngine.room_for",),
)


def _row(case: Case, at: int, size: int, promise: int = 0) -> tuple[int, int]:
    written = case.choice(f"written {at}", range(1, 4 * size))
    return written, -(-(written + 1) // size) + promise


def _lacks(rows: list[tuple[int, int]], size: int) -> int:
    """Blocks that are promised and not held."""
    return sum(promised - -(-written // size) for written, promised in rows)


def promises_first(case: Case) -> Call:
    """Free blocks that are promised to others are no room; a row's own promise is, and what is left goes in order."""
    size = case.size("block size", 2, 4)
    rows = [_row(case, at, size, case.choice(f"promise {at}", (0, 1, 2))) for at in range(case.size("rows", 2, 4))]
    wishes = [case.choice(f"wish {at}", (1, size, 3 * size)) for at in range(len(rows))]
    return call(rows, wishes, wishes, _lacks(rows, size) + case.size("over", 0, 3), size)


def given_back(case: Case) -> Call:
    """After the step a row holds its text, its newest token and what was kept, in as few blocks as these need."""
    size = case.size("block size", 2, 4)
    rows = [_row(case, at, size) for at in range(case.size("rows", 1, 3))]
    wishes = [case.choice(f"wish {at}", range(size, 3 * size + 1)) for at in range(len(rows))]
    right = [case.choice(f"right {at}", range(wish + 1)) for at, wish in enumerate(wishes)]
    return call(rows, wishes, right, 50, size)


KINDS = ("one", "none", "full", "equal", "nobody", "block of one", "some", "some", "some", "large", "many")


def any_rows(case: Case) -> Call:
    """No row, one, many; no drafts, no room, blocks of one token, many blocks; rows that are equal."""
    kind = case.turn(KINDS)
    if kind == "nobody":
        return call([], [], [], 3, 4)
    if kind == "one":
        return call([(1, 2)], [1], [case.choice("right", (0, 1))], 1, 1)
    if kind == "full":
        return call([(4, 1), (8, 2), (3, 1)][2:] * 3, [5, 1, 2], [5, 0, 2], 0, 4)
    if kind == "large":
        return call([(70_000, 5_000), (100_000, 9_000)], [90_000, 70_000], [66_000, 90], 20_000, 17)
    size = 1 if kind == "block of one" else 3
    count = 80 if kind == "many" else 4
    rows = [_row(case, at, size, case.choice(f"promise {at}", (0, 0, 1, 2))) for at in range(count)]
    wishes = [0 if kind == "none" else case.choice(f"wish {at}", range(8)) for at in range(len(rows))]
    if kind == "equal":
        rows, wishes = rows[:1] * 4, [4] * 4
    wishes[0], wishes[-1] = (0, 0) if kind == "many" else (wishes[0], wishes[-1])
    right = [case.choice(f"right {at}", range(wish + 1)) for at, wish in enumerate(wishes)]
    over = case.choice("over", range(30, 60)) if kind == "many" else case.choice("over", range(4))
    return call(rows, wishes, right, _lacks(rows, size) + over, size)


CHECKS = (Check(any_rows, len(KINDS), wide=True), Check(promises_first, 6), Check(given_back, 4))
