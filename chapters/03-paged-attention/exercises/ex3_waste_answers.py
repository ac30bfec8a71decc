"""Exercise 3.3: correct variants, mutants that are none."""

from __future__ import annotations


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


EQUIVALENT: dict[str, str] = {}
