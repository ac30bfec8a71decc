"""Exercise 3.8: wrong answers and where they come from, correct variants, mutants that are none."""

from __future__ import annotations

from nanocourse.exercises.exercise import Right, Wrong
from nanoinfer.cache.paged import MAX_SPLITS, PROGRAMS, SPLIT_TOKENS

WANTED = "min(MAX_SPLITS, PROGRAMS // (batch * heads), tiles)"
POWER = "1 << max(0, wanted.bit_length() - 1)"
TILES = "-(-max_len // SPLIT_TOKENS)"


def as_long_as_tiles_are_left(batch: int, heads: int, max_len: int, lengths: list[int]) -> int:
    """Doubled as long as the parts so far do not hold the text."""
    splits = 1
    while splits * 2 <= MAX_SPLITS and splits * 2 * batch * heads <= PROGRAMS and splits * SPLIT_TOKENS < max_len:
        splits *= 2
    return splits


WRONG = (
    Wrong.patch(
        "always-the-most", "More parts are always faster.", WANTED, "MAX_SPLITS",
        "Dao-AILab/flash-attention#1248: 2, 4 and 8 tried by hand, and all slower than the 1 that was chosen",
    ),
    Wrong.patch(
        "by-the-longest", "What counts is how long the rows are now.", TILES, "-(-max(lengths) // SPLIT_TOKENS)",
        "vllm-project/vllm#51119: the number chosen at capture is used for ever",
    ),
    Wrong.patch(
        "by-the-mean", "What counts is how long the rows are in the mean.", TILES,
        "-(-sum(lengths) // len(lengths) // SPLIT_TOKENS)", "vllm-project/vllm#19106: more at run time than at capture",
    ),
    Wrong.patch(
        "of-the-first-row", "The first row speaks for all.", TILES, "-(-lengths[0] // SPLIT_TOKENS)",
        "EvolvingLMMs-Lab/lmms-eval#1423: what holds for the first row, for all",
    ),
    Wrong.patch(
        "no-power-of-two", "Any number of parts will do.", POWER, "max(1, wanted)",
        "triton-lang/triton#621: tl.arange takes powers of two, and the join reads all parts at once",
    ),
    Wrong.patch(
        "rounded-up", "The next power of two is near enough.", POWER, "1 << max(0, (wanted - 1).bit_length())",
        "triton.next_power_of_2, where the one below was meant",
    ),
    Wrong.patch(
        "heads-forgotten", "A launch has a program for each row.", "PROGRAMS // (batch * heads)", "PROGRAMS // batch",
        "an author's own slip: a program reads one head",
    ),
    Wrong.patch(
        "rows-forgotten", "A launch has a program for each head.", "PROGRAMS // (batch * heads)", "PROGRAMS // heads",
        "Dao-AILab/flash-attention, num_splits: it takes both, as it must",
    ),
    Wrong.patch(
        "begun-tile-left-out", "Only whole tiles are worth a part.", TILES, "max_len // SPLIT_TOKENS",
        "an author's own slip: rounding in the wrong direction",
    ),
    Wrong.patch(
        "to-the-last-program", "The device must be full: the launch may have some programs more.",
        "PROGRAMS // (batch * heads)", "-(-PROGRAMS // (batch * heads))",
        "an author's own slip: the last wave of programs runs alone",
    ),
    Wrong.patch(
        "divided-twice", "Dividing by rows and then by heads loses programs twice.",
        "PROGRAMS // (batch * heads)", "PROGRAMS // batch // heads", "a reviewer's remark on such a line",
        lesson="rounding down twice gives what rounding down once does: a // b // c is a // (b * c)",
    ),
    Wrong.patch(
        "none-at-all", "Where there is no room for parts there are none.", POWER, "1 << wanted.bit_length() - 1 "
        "if wanted else 0", "an author's own slip: a launch of 0 programs, and no output",
    ),
    Wrong.patch(
        "one-row-alone", "A single row leaves the device empty, so it is cut as often as can be.",
        "wanted = min(",
        "wanted = MAX_SPLITS if batch == 1 else min(",
        "written to pass all checks that there were, and it did", unnamed="always-the-most",
    ),
    Wrong.patch(
        "nothing-to-cut", "Where all rows are empty there is nothing to cut.",
        "    tiles =", "    if not any(lengths):\n        return 1\n    tiles =",
        "a reader who saw stub and text alone", unnamed="always-the-most",
    ),
    Wrong.patch(
        "one-more-than-whole", "Rounding up is rounding down, and one more.",
        "-(-max_len // SPLIT_TOKENS)", "max_len // SPLIT_TOKENS + 1",
        "a reader who saw stub and text alone", unnamed="rounded-up",
    ),
    Wrong.patch(
        "as-a-float", "A number of parts may be a float.",
        "return 1 << max(0, wanted.bit_length() - 1)",
        "return 2.0 ** max(0, wanted.bit_length() - 1)",
        "written to pass all checks that there were, and it did",
    ),
    Wrong(
        as_long_as_tiles_are_left, "a try of somebody who saw stub and text alone, which passed", unnamed="rounded-up"
    ),
    Wrong.patch(
        "rows-with-text", "A row without a text needs no programs.",
        "(batch * heads)", "((sum(length > 0 for length in lengths) or batch) * heads)",
        "a third reader who saw stub and text alone; it passed", unnamed="always-the-most",
    ),
    Wrong.patch(
        "rows-with-a-length", "There are as many rows as lengths.",
        "(batch * heads)", "((min(batch, len(lengths)) or batch) * heads)",
        "a fifth reader who saw stub and text alone; it passed", unnamed="always-the-most",
    ),
)  # fmt: skip


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


def largest_that_passes(batch: int, heads: int, max_len: int, lengths: list[int]) -> int:
    """All powers are tried, and the largest that passes is taken; 1 always passes."""
    powers = [1, 2, 4, 8, 16, 32]
    tiles = sum(1 for _ in range(0, max_len, SPLIT_TOKENS))
    return max(p for p in powers if p == 1 or p <= min(MAX_SPLITS, tiles, PROGRAMS / (batch * heads)))


def by_string(batch: int, heads: int, max_len: int, lengths: list[int]) -> int:
    """The highest binary digit, from the number's own digits."""
    wanted = sorted((MAX_SPLITS, PROGRAMS // batch // heads, (max_len - 1) // SPLIT_TOKENS + 1))[0]
    return int("1" + "0" * (len(f"{wanted:b}") - 1), 2)


RIGHT = (Right(by_doubling), Right(largest_that_passes), Right(by_string))

_ORDER = "the least of three is the same in any order"
EQUIVALENT = {
    "return 1 << max(wanted.bit_length() - 1, 0)": "the larger of two is the same in either order",
    "wanted = min(MAX_SPLITS, tiles, PROGRAMS // (batch * heads))": _ORDER,
    "wanted = min(PROGRAMS // (batch * heads), MAX_SPLITS, tiles)": _ORDER,
}
