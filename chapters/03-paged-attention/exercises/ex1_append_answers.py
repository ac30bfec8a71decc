"""Exercise 3.1: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from nanocourse.exercises.exercise import Edition, Right, Wrong

Rows = list[list[int]]


def as_the_longest(owned: Rows, lengths: list[int], free: list[int], block_size: int) -> tuple[Rows, list[int]]:
    """A batch is as long as its longest row, so every row gets that row's blocks."""
    owned, free = [list(blocks) for blocks in owned], list(free)
    for blocks in owned:
        while len(blocks) * block_size < max(lengths):
            if not free:
                raise RuntimeError("no free block")
            blocks.append(free.pop())
    return owned, free


def neighbours(owned: Rows, lengths: list[int], free: list[int], block_size: int) -> tuple[Rows, list[int]]:
    """A row's next block is the one behind its last."""
    owned, free = [list(blocks) for blocks in owned], list(free)
    for blocks, length in zip(owned, lengths, strict=True):
        while len(blocks) * block_size < length:
            if not free:
                raise RuntimeError("no free block")
            block = blocks[-1] + 1 if blocks and blocks[-1] + 1 in free else free[-1]
            free.remove(block)
            blocks.append(block)
    return owned, free


def moved(owned: Rows, lengths: list[int], free: list[int], block_size: int) -> tuple[Rows, list[int]]:
    """A row that has outgrown its blocks is given new ones for its whole text, as a list is when it grows."""
    owned, free = [list(blocks) for blocks in owned], list(free)
    for row, length in enumerate(lengths):
        needed = -(-length // block_size)
        if needed > len(owned[row]):
            old, owned[row] = owned[row], []
            while len(owned[row]) < needed:
                if not free:
                    raise RuntimeError("no free block")
                owned[row].append(free.pop())
            free += old
    return owned, free


def what_is_there(owned: Rows, lengths: list[int], free: list[int], block_size: int) -> tuple[Rows, list[int]]:
    """A row takes what is free; where that is too little, it goes on with what it has."""
    owned, free = [list(blocks) for blocks in owned], list(free)
    for blocks, length in zip(owned, lengths, strict=True):
        while free and len(blocks) * block_size < length:
            blocks.append(free.pop())
    return owned, free


def by_remainder(owned: Rows, lengths: list[int], free: list[int], block_size: int) -> tuple[Rows, list[int]]:
    """A row takes a block where its length is one more than a multiple of the block size, whatever it owns."""
    owned, free = [list(blocks) for blocks in owned], list(free)
    for blocks, length in zip(owned, lengths, strict=True):
        if length % block_size == 1:
            if not free:
                raise RuntimeError("no free block")
            blocks.append(free.pop())
    return owned, free


def gives_back(owned: Rows, lengths: list[int], free: list[int], block_size: int) -> tuple[Rows, list[int]]:
    """All blocks go back first, and each row takes what it needs."""
    free = list(free) + [block for blocks in owned for block in blocks]
    taken: Rows = []
    for length in lengths:
        taken.append([])
        while len(taken[-1]) * block_size < length:
            if not free:
                raise RuntimeError("no free block")
            taken[-1].append(free.pop())
    return taken, free


def surplus_given_back(owned: Rows, lengths: list[int], free: list[int], block_size: int) -> tuple[Rows, list[int]]:
    """A block that a row does not need at this step is free for the others."""
    owned, free = [list(blocks) for blocks in owned], list(free)
    for blocks, length in zip(owned, lengths, strict=True):
        while len(blocks) * block_size < length:
            if not free:
                raise RuntimeError("no free block")
            blocks.append(free.pop())
        while (len(blocks) - 1) * block_size >= length:
            free.append(blocks.pop())
    return owned, free


LACKS = "len(blocks) * block_size < length"


def needs_added_up(
    owned: list[list[int]], lengths: list[int], free: list[int], block_size: int
) -> tuple[list[list[int]], list[int]]:
    """Whether the free blocks suffice is told by the sum of what all rows need."""
    needs = [-(-length // block_size) - len(row) for row, length in zip(owned, lengths, strict=True)]
    if sum(needs) > len(free):
        raise RuntimeError(f"{sum(needs)} blocks are needed, {len(free)} are free")
    for row, need in zip(owned, needs, strict=True):
        for _ in range(need):
            row.append(free.pop())
    return owned, free


def one_call_a_block(owned: Rows, lengths: list[int], free: list[int], block_size: int) -> tuple[Rows, list[int]]:
    """A row never needs so many blocks that a call for each is too deep."""
    free = list(free)

    def fill(blocks: list[int], length: int) -> list[int]:
        if len(blocks) * block_size >= length:
            return blocks
        if not free:
            raise RuntimeError("no free block")
        return fill([*blocks, free.pop()], length)

    return [fill(blocks, length) for blocks, length in zip(owned, lengths, strict=True)], free


WRONG = (
    Wrong.patch(
        "before-its-write", "The newest token is not written yet, so it comes on top of the length.",
        LACKS, "len(blocks) * block_size < length + 1", "GeeeekExplorer/nano-vllm#65, #150: readers who expected this",
    ),
    Wrong.patch(
        "newest-left-out", "The newest token is not written yet, so it needs no room yet.",
        LACKS, "len(blocks) * block_size < length - 1", "EricLBuehler/candle-vllm#56, Wenyueh/MinivLLM#85",
    ),
    Wrong.patch(
        "rounded-down", "A text of n tokens has n // block_size blocks.",
        LACKS, "len(blocks) < length // block_size",
        "an author's own slip: -(-n // size) written without its two signs",
    ),
    Wrong.patch(
        "one-at-a-time", "A step needs one block more at most.", "while", "if",
        "GeeeekExplorer/nano-vllm, may_append: right in decode, where prompts take their blocks elsewhere",
    ),
    Wrong.patch(
        "always-one", "Every row takes a block for every step.", f"while {LACKS}:", "for _ in range(1):",
        "an author's own slip: a slot and a block confused",
    ),
    Wrong(as_the_longest, "the dense cache of chapter 2, which is a rectangle"),
    Wrong(neighbours, "the pages of a contiguous cache; Kwon et al. 2023, section 3, on what it fragments"),
    Wrong(moved, "Python's own list, which moves when it grows; Kwon et al. 2023, section 3.1: reserved in one piece"),
    Wrong(what_is_there, "vllm-project/vllm#45357: a count that is hoped for; candle-vllm#56"),
    Wrong(by_remainder, "GeeeekExplorer/nano-vllm#240: the test by remainder, taken out of its place in decode"),
    Wrong(surplus_given_back, "a cache that shrinks to fit: right where a row's last tokens were taken back for good"),
    Wrong(gives_back, "an author's own slip: a step that begins anew gives every row another row's keys"),
    Wrong.patch(
        "nothing-free-is-an-error", "Without a free block no step is possible.",
        "owned, free = [list(blocks) for blocks in owned], list(free)",
        "if not free:\n"
        '        raise RuntimeError("no free block")\n'
        "    owned, free = [list(blocks) for blocks in owned], list(free)",
        "written to pass all checks that there were, and it did", unnamed="always-one",
    ),
    Wrong.patch(
        "four-rows", "The first four rows are the batch.",
        "for blocks, length in zip(owned, lengths, strict=True):",
        "for blocks, length in list(zip(owned, lengths, strict=True))[:4]:",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "block-0-is-none", "Block 0 is none.",
        "            blocks.append(free.pop())",
        "            block = free.pop()\n"
        "            if not block:\n"
        '                raise RuntimeError("no free block")\n'
        "            blocks.append(block)",
        "a reader who saw stub and text alone",
    ),
    Wrong(needs_added_up, "a try of somebody who saw stub and text alone, which passed"),
    Wrong(one_call_a_block, "a third reader who saw stub and text alone; it passed"),
    Wrong.patch(
        "rounded-by-hand", 'Adding 0.9 and cutting off rounds up.',
        'while len(blocks) * block_size < length:',
        'for _ in range(int(length / block_size + 0.9) - len(blocks)):',
        "a fourth reader who saw stub and text alone; it passed", unnamed="rounded-down",
    ),
    Wrong.patch(
        "negative-is-none", 'A negative number is none.',
        '            blocks.append(free.pop())',
        "            block = free.pop()\n"
        "            if block < 0:\n"
        '                raise RuntimeError("no free block")\n'
        "            blocks.append(block)",
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "divided-as-floats", "A float's quotient, rounded up, is a whole number's.",
        "while len(blocks) * block_size < length:",
        "for _ in range(int(-(-length / block_size // 1)) - len(blocks)):",
        "a fifth reader who saw stub and text alone; it passed", unnamed="rounded-down",
    ),
)  # fmt: skip


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


def block_by_block(owned: Rows, lengths: list[int], free: list[int], block_size: int) -> tuple[Rows, list[int]]:
    """Every block's first token is looked at: one whose block the row does not have takes one."""
    after, left = tuple(tuple(blocks) for blocks in owned), tuple(free)
    for row, length in enumerate(lengths):
        for position in range(0, length, block_size):
            if position // block_size >= len(after[row]):
                if not left:
                    raise RuntimeError
                grown = (*after[row], left[-1])
                after, left = (*after[:row], grown, *after[row + 1 :]), left[:-1]
    return [list(blocks) for blocks in after], list(left)


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


RIGHT = (Right(by_division), Right(block_by_block), Right(in_place))

EQUIVALENT = {
    "for blocks, length in zip(owned, lengths, strict=False):": "there is one length for every row",
    "without: owned, free = ([list(blocks) for blocks in owned], list(free))": (
        "a solution gets lists of its own, so whether it changes them cannot be seen, and does no harm"
    ),
}


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


def _begun(result: tuple[Rows, list[int]], owned: Rows, *args: object) -> list[tuple[int, int, int]]:
    return [
        (row, place, block)
        for row, blocks in enumerate(result[0])
        for place, block in enumerate(blocks)
        if place >= len(owned[row]) or owned[row][place] != block
    ]


EDITIONS = (
    Edition(
        "blocks-begun", "the answer is the list of blocks that are begun, not the rows' lists", blocks_begun,
        args=lambda *args: args, back=lambda *args: args, result=_begun, axes=("block", "number"),
    ),
)  # fmt: skip
