"""Exercise 3.3: wrong answers and where they come from, correct variants, mutants that are none."""

from __future__ import annotations

from nanocourse.exercises.exercise import Right, Wrong

BLOCKS = "1 + sum(-(-length // block_size) for length in lengths)"
TABLE = "4 * lines * -(-room // block_size)"
PAGED = "(blocks * block_size - tokens) * token_bytes + table"
WRONG = (
    Wrong.patch(
        "paging-wastes-nothing", "Paging removes all waste.", PAGED, "0",
        "vllm-project/vllm, its announcement of 2023, read in haste: it says under 4%, not none",
    ),
    Wrong.patch(
        "blocks-are-free", "A table costs nothing, so smaller blocks are always better.", " + table", "",
        "Kwon et al. 2023, section 7.2, weighs block sizes for their cost in the kernel; the table is left out often",
    ),
    Wrong.patch(
        "rounded-together", "The rows' tokens are packed into blocks one behind the other.",
        BLOCKS, "1 + -(-tokens // block_size)",
        "an author's own slip: a block belongs to one row",
    ),
    Wrong.patch(
        "half-a-block", "A row wastes half a block, in the mean.", PAGED,
        "(len(lengths) * block_size // 2 + block_size) * token_bytes + table",
        "a rule of thumb, for an estimate: right where lengths are spread evenly, and no number for these rows",
    ),
    Wrong.patch(
        "one-block-more", "A row of n tokens has n // block_size blocks and one more.",
        "-(-length // block_size)", "(length // block_size + 1)",
        "GeeeekExplorer/nano-vllm#65: the block that is about to be needed",
    ),
    Wrong.patch(
        "no-null-block", "All blocks of the pool are the rows'.", "1 + sum", "sum",
        "NVIDIA/TensorRT-LLM#16072: padding's own block, forgotten until the pool is full",
    ),
    Wrong.patch(
        "no-spare-row", "A cache has as many rows as the batch.", "len(lengths) + 1", "len(lengths)",
        "an author's own slip: this engine's padding needs a row to write to",
    ),
    Wrong.patch(
        "as-the-longest", "A dense cache is as wide as its longest row.", "lines * room", "lines * max(lengths)",
        "huggingface/transformers, DynamicCache, which grows with the longest row, and copies itself each time",
    ),
    Wrong.patch(
        "table-of-what-is-used", "The table has an entry for each block in use.", TABLE, "4 * blocks",
        "flashinfer's indices and indptr, which do; a table of fixed shape does not",
    ),
    Wrong.patch(
        "table-for-each-layer", "Each layer has a table of its own.", "4 * lines *", "4 * 12 * lines *",
        "an author's own slip: a block is one block in every layer, so one table serves all",
    ),
    Wrong.patch(
        "slots-for-bytes", "Waste is counted in slots.", PAGED, "blocks * block_size - tokens + table",
        "an author's own slip: slots and bytes added up",
    ),
    Wrong.patch(
        "empty-rows-have-one", "Every row has a block.",
        "-(-length // block_size)",
        "max(1, -(-length // block_size))",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "cut-at-the-room", "A row's blocks end where its room ends.",
        PAGED,
        "(block_size + sum(min(room, -(-n // block_size) * block_size) for n in lengths) - tokens) * token_bytes"
        " + table",
        "a reader who saw stub and text alone", unnamed="rounded-together",
    ),
    Wrong.patch(
        "rounded-by-hand", "Adding 0.99 and cutting off rounds up.",
        BLOCKS, "1 + sum(int(length / block_size + 0.99) for length in lengths)",
        "a third reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "block-no-larger-than-room", 'A block is no larger than the room.',
        'blocks * block_size - tokens',
        'blocks * min(block_size, room) - tokens',
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "as-floats", "Bytes may be floats.",
        "return (lines * room - tokens) * token_bytes, ",
        "return (lines * room - tokens) * token_bytes / 1, ",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "divided-as-floats", "A float's quotient, rounded up, is a whole number's.",
        TABLE, "4 * lines * int(-(-room / block_size // 1))",
        "a fifth reader who saw stub and text alone; it passed", unnamed="as-floats",
    ),
)  # fmt: skip


def block_by_block(lengths: list[int], room: int, block_size: int, token_bytes: int) -> tuple[int, int]:
    """Every block is looked at, and what is empty in it counted."""
    rows = [*lengths, 0]
    dense = sum(room - length for length in rows)
    paged = block_size
    for length in lengths:
        for first in range(0, length, block_size):
            paged += max(0, first + block_size - length)
    entries = sum(1 for _ in rows for first in range(0, room, block_size))
    return dense * token_bytes, paged * token_bytes + 4 * entries


def by_remainders(lengths: list[int], room: int, block_size: int, token_bytes: int) -> tuple[int, int]:
    """What each row lacks to the next multiple."""
    dense = room + sum(room - length for length in lengths)
    ends = sum(-length % block_size for length in lengths)
    width = (room + block_size - 1) // block_size
    return dense * token_bytes, (block_size + ends) * token_bytes + (len(lengths) + 1) * width * 4


def taken_less_used(lengths: list[int], room: int, block_size: int, token_bytes: int) -> tuple[int, int]:
    """Bytes that are taken less bytes that are used, in fractions that come out whole."""
    used = token_bytes * sum(lengths)
    pool = block_size * token_bytes * (1 + sum((length - 1) // block_size + 1 for length in lengths))
    table = (1 + len(lengths)) * ((room - 1) // block_size + 1) * 32 // 8
    return token_bytes * room * (1 + len(lengths)) - used, int(pool + table - used)


RIGHT = (Right(block_by_block), Right(by_remainders), Right(taken_less_used))

EQUIVALENT: dict[str, str] = {}
