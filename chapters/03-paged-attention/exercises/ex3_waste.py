"""Exercise 3.3: the bytes of a cache that hold no token, for both caches."""

from __future__ import annotations

from nanocourse.exercises import Call, Case, Check, Spec, call


def waste(lengths: list[int], room: int, block_size: int, token_bytes: int) -> tuple[int, int]:
    """Bytes without a token, in a dense cache and in a paged one, that hold rows of these lengths.

    lengths: tokens of each row. room: the most that a row may come to hold. token_bytes: keys and values of one token.
    Dense: `room` slots for each row, and a dummy row for padding. Paged: blocks of `block_size` slots, each row as many
    as its tokens need, and the null block; and the table, 4 bytes for every block that a row of `room` tokens would
    have, a line for each row and a dummy row. All numbers may be of any size, beyond 64 bits too.
    """
    tokens, lines = sum(lengths), len(lengths) + 1
    blocks = 1 + sum(-(-length // block_size) for length in lengths)
    table = 4 * lines * -(-room // block_size)
    return (lines * room - tokens) * token_bytes, (blocks * block_size - tokens) * token_bytes + table


EXERCISE = Spec(
    reference=waste,
    lines=5,
    example=lambda: call([3, 8], 16, 4, 100),
    section="Reservations, and what is left of the waste",
    axes=(("the dense cache",), ("the paged cache",)),
    typed=True,
    exact=True,
)


def ragged(case: Case) -> Call:
    """Rows of any lengths: what they do not fill, and what belongs to no row."""
    size, rows = case.size("block size", 2, 16), case.size("rows", 1, 4)
    lengths = case.ints("lengths", 1, 4 * size, rows).tolist()
    return call(lengths, 4 * size + case.size("more room", 0, 9), size, 2 * case.size("width", 1, 9) + 10)


def whole_blocks(case: Case) -> Call:
    """A row whose tokens fill its blocks has none that is empty; blocks of one token are always full."""
    size, rows = case.size("block size", 1, 6), case.size("rows", 1, 3)
    lengths = (case.ints("blocks", 1, 3, rows) * size).tolist()
    return call(lengths, 4 * size, size, 2 * case.size("width", 1, 9) + 10)


def any_batch(case: Case) -> Call:
    """Rows without a token, no row, many rows, more than 2^53 bytes, rows that fill the room, blocks of any size."""
    kind = case.turn(("",) * 4 + ("full",) * 2 + ("less than a block", "large blocks", "beyond floats", "no token"))
    if kind == "no token":
        return call([0, 0], 5, case.choice("block", (2, 7)), 2 * case.size("width", 1, 9))
    if kind == "beyond floats":  # n / block_size is a whole number where n is one token more
        large, more = case.choice("large", (2**53, 2**63)), case.choice("more", (1, 2 * 2**63 + 1))
        return call([1, large, large + 1], large + more, large, case.choice("bytes", (1, 3)))
    if kind == "less than a block":
        return call([3, 5, 0], 5, 8, 2 * case.size("width", 1, 9))
    if kind == "large blocks":
        return call([20_001], 20_001, 20_000, 2 * case.size("width", 1, 9))
    if kind == "full":
        token_bytes = case.turn((100,) * 5 + (2**53 + 1,))
        return call([0, 10, 9, 0], 10, 4, token_bytes + 2 * case.size("width", 1, 9))
    size, rows = case.turn((16, 8, 1, 2048)), case.turn((3, 0, 70, 600))
    lengths = [0 if row % 3 == 1 else length for row, length in enumerate(case.ints("lengths", 1, 60, rows).tolist())]
    lengths[:1] = [size + 1] * (rows > 0)  # a token behind whole blocks
    return call(lengths, size + case.turn((64, 64, 64, 500)), size, case.turn((12, 12, 12, 40_000)))


def any_mixture(case: Case) -> Call:
    """Rows of any lengths, 0 and the room too, in small blocks and large ones; each size is 1 once, and all are."""
    most, one = {"block size": 20, "room": 60, "rows": 5, "bytes": 99}, case.turn(("room", "all", "bytes", *[""] * 9))
    most = {name: 1 if one in (name, "all") else size for name, size in most.items()}
    size, room = case.size("block size", 1, most["block size"]), case.size("room", 1, most["room"])
    lengths = case.ints("lengths", -room // 4, room + room // 4, case.size("rows", 0, most["rows"])).clamp(0, room)
    return call(lengths.tolist(), room, size, case.size("bytes", 1, most["bytes"]))


CHECKS = (Check(ragged, 4), Check(whole_blocks, 3), Check(any_batch, 10, wide=True), Check(any_mixture, 12, wide=True))
