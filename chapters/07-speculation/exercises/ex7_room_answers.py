"""Exercise 7.7: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from nanocourse.exercises.exercise import edition

Rows = list[tuple[int, int]]
Answer = tuple[list[int], list[int], list[int], int]


def one_draft_at_a_time(rows: Rows, wishes: list[int], right: list[int], free: int, block_size: int) -> Answer:
    """Every cell is taken one by one, from a pool of which promises are set aside."""

    def blocks_of(tokens: int) -> int:
        return (tokens + block_size - 1) // block_size

    over = free
    for written, promised in rows:
        over -= promised - blocks_of(written)
    brought, held, kept = [], [], []
    for at, (written, promised) in enumerate(rows):
        mine, count = promised, 0
        while count < wishes[at]:
            needs = blocks_of(written + count + 2)
            if needs > mine and over == 0:
                break
            if needs > mine:
                mine, over = mine + 1, over - 1
            count += 1
        brought.append(count)
        held.append(blocks_of(written + 1 + count))
        kept.append(blocks_of(written + 1 + (right[at] if right[at] < count else count)))
    return brought, held, kept, free + sum(blocks_of(written) for written, _ in rows) - sum(kept)


def pools(rows: Rows, wishes: list[int], right: list[int], free: int, block_size: int) -> Answer:
    """All blocks, held or free, and what each row may have of them at most."""
    whole = free + sum((written - 1) // block_size + 1 for written, _ in rows)
    spare = whole - sum(promised for _, promised in rows)
    told: list[tuple[int, int, int]] = []
    for (written, promised), wish, good in zip(rows, wishes, right, strict=True):
        end = min(written + 1 + wish, (promised + spare) * block_size)
        blocks = (end - 1) // block_size + 1
        spare = spare if blocks <= promised else spare - (blocks - promised)
        drafts = end - written - 1
        told.append((drafts, blocks, (written + min(good, drafts)) // block_size + 1))
    brought, held, kept = ([line[n] for line in told] for n in range(3))
    return brought, held, kept, whole - sum(kept)


def _told(
    result: Answer, rows: Rows, wishes: list[int], right: list[int], free: int, size: int
) -> list[dict[str, int]]:
    brought, held, kept, after = result
    lines = [{"brings": a, "during": b, "after": c} for a, b, c in zip(brought, held, kept, strict=True)]
    lost = free + sum(-(-written // size) for written, _ in rows) - sum(kept) - after
    return lines if lost == 0 else [*lines, {"brings": 0, "during": 0, "after": lost}]


@edition(
    "by-columns",
    "the pool is given whole, rows are columns, and the answer is a dict for each row",
    args=lambda rows, wishes, right, free, size: (
        free + sum(-(-written // size) for written, _ in rows),
        size,
        [written for written, _ in rows],
        [promised for _, promised in rows],
        {"there": wishes, "right": right},
    ),
    back=lambda pool, size, written, promised, drafts: (
        list(zip(written, promised, strict=True)),
        drafts["there"],
        drafts["right"],
        pool - sum(-(-tokens // size) for tokens in written),
        size,
    ),
    result=_told,
    axes=("row",),
)
def rooms(
    pool: int, block_size: int, written: list[int], promised: list[int], drafts: dict[str, list[int]]
) -> list[dict[str, int]]:
    """What becomes of each row: how many drafts it "brings", and the blocks it holds "during" the step and "after" it.

    pool: all blocks, held or free, of `block_size` tokens each. written: of each row that goes on how many tokens of
    its text have keys and values in its blocks, at least 1; it holds as many blocks as these need. promised: how many
    blocks each row is promised in all, those that it holds among them: enough for one token more at least, and all
    promises together are no more than the pool. drafts: "there", how many drafts each row has, and "right", how many of
    them, from the first on, would be kept if it brought them all. First come, first served.
    In the step a row writes its newest token and the drafts that it brings. It brings as many as it has, or as many as
    there is room for: in the blocks that it holds, in those that it is promised, and then in those that are promised to
    nobody, which rows after it cannot take any more. It takes blocks only as far as it needs them.
    After the step a row has its newest token and the drafts that were brought and kept, in as few blocks as these need
    with all before them. The token that is chosen after them is not written yet. All other blocks are given back.
    """
    over, told = pool - sum(promised), []
    for at, before in enumerate(written):
        brings = min(drafts["there"][at], (promised[at] + over) * block_size - before - 1)
        during = -(-(before + 1 + brings) // block_size)
        over -= max(0, during - promised[at])
        after = -(-(before + 1 + min(brings, drafts["right"][at])) // block_size)
        told.append({"brings": brings, "during": during, "after": after})
    return told
