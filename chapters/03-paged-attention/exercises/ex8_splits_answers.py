"""Exercise 3.8: correct variants, mutants that are none."""

from __future__ import annotations

from nanoinfer.cache.paged import MAX_SPLITS, PROGRAMS, SPLIT_TOKENS


def by_doubling(batch: int, heads: int, max_len: int, lengths: list[int]) -> int:
    """Doubled as long as nothing speaks against it."""
    splits = 1
    while (
        splits * 2 <= MAX_SPLITS
        and splits * 2 * batch * heads <= PROGRAMS
        and (splits * 2 - 1) * SPLIT_TOKENS < max_len
    ):
        splits *= 2
    return splits


def by_string(batch: int, heads: int, max_len: int, lengths: list[int]) -> int:
    """The highest binary digit, from the number's own digits."""
    wanted = sorted((MAX_SPLITS, PROGRAMS // batch // heads, (max_len - 1) // SPLIT_TOKENS + 1))[0]
    return int("1" + "0" * (len(f"{wanted:b}") - 1), 2)
