"""Exercise 4.4: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from bisect import bisect_left

from nanocourse.exercises.exercise import Edition, Right, Wrong

Answer = tuple[list[int], list[int | None]]


def powers_alone(maximum: int, batches: list[int]) -> Answer:
    """Sizes are powers of two, up to the maximum: padding to the next one costs nothing."""
    sizes = [2**n for n in range(maximum.bit_length())]
    if maximum and sizes[-1] < maximum:
        sizes.append(maximum)
    return sizes, [next((size for size in sizes if size >= batch), None) for batch in batches]


def every_size(maximum: int, batches: list[int]) -> Answer:
    """A graph for every batch size: there is no padding then."""
    sizes = list(range(1, maximum + 1))
    return sizes, [batch if batch <= maximum else None for batch in batches]


def by_sixteens(maximum: int, batches: list[int]) -> Answer:
    """Sizes are 1, 2, 4, 8 and the multiples of 16."""
    sizes = [size for size in [1, 2, 4, 8, *range(16, maximum + 1, 16)] if size <= maximum]
    return sizes, [next((size for size in sizes if size >= batch), None) for batch in batches]


RULE = """    sizes = [n for n in range(1, maximum) if n in (1, 2, 4) or n % max(8, 2 ** n.bit_length() // 8) == 0]
"""
LAST = """    if maximum:
        sizes.append(maximum)
"""
PICKS = "[next((size for size in sizes if size >= batch), None) for batch in batches]"
WRONG = (
    Wrong(powers_alone, "vLLM's and others' first ladders; GeeeekExplorer/nano-vllm#216 counts what it costs"),
    Wrong(every_size, "an author's own slip: 512 captures, and the memory of 512 graphs"),
    Wrong(by_sixteens, "GeeeekExplorer/nano-vllm@bb823b3, its list of batch sizes; #216: a batch of 12 or 100 raised"),
    Wrong.patch(
        "without-the-maximum", "The maximum is in the ladder by itself.", RULE + LAST,
        RULE.replace("range(1, maximum)", "range(1, maximum + 1)"),
        "GeeeekExplorer/nano-vllm#216; sgl-project/sglang#33483, vllm-project/vllm#40734: the largest ran eagerly",
    ),
    Wrong.patch(
        "past-the-maximum", "The ladder goes on until it holds the maximum.",
        "sizes.append(maximum)", "sizes.append(1 << (maximum - 1).bit_length())",
        "vllm-project/vllm#21228: a graph with more rows than the tables have",
    ),
    Wrong.patch(
        "maximum-twice", "The maximum is put behind all sizes up to it.", "range(1, maximum)",
        "range(1, maximum + 1)", "an author's own slip: one graph captured twice",
    ),
    Wrong.patch(
        "nought-is-a-rung", "The maximum is always the last size.", LAST, "    sizes.append(maximum)\n",
        "a reader's answer, which passed all checks that there were: graphs of no rows where graphs are off",
    ),
    Wrong.patch(
        "always-eight", "Sizes go on in steps of 8.", "max(8, 2 ** n.bit_length() // 8)", "8",
        "vllm-project/vllm, its list of sizes up to 256: 32 of them there, 64 at 512",
    ),
    Wrong.patch(
        "largest-always", "Padding is free, so the largest graph serves all.", PICKS,
        "[sizes[-1] if sizes and batch <= maximum else None for batch in batches]",
        "sgl-project/sglang#21005: batches that were all padded to the top",
    ),
    Wrong.patch(
        "nearest", "A batch goes through the size that is nearest to it.", PICKS,
        "[min(sizes, key=lambda size: abs(size - batch)) if 0 < batch <= maximum else None for batch in batches]",
        "an author's own slip: rows that the graph does not have",
    ),
    Wrong.patch(
        "next-larger", "A batch needs a size that is larger than it.", "if size >= batch)", "if size > batch)",
        "an author's own slip: bisect_right for bisect_left; the maximum itself runs eagerly",
    ),
    Wrong.patch(
        "clamped", "A batch that is too large goes through the largest graph.", "size >= batch), None)",
        "size >= batch), sizes[-1] if sizes else None)", "vllm-project/vllm#9285: more rows sent in than were captured",
    ),
    Wrong.patch(
        "raises", "A batch beyond the ladder cannot happen.", "next((size for size in sizes if size >= batch), None)",
        "next(size for size in sizes if size >= batch)", "GeeeekExplorer/nano-vllm#216: StopIteration in mid-serving",
    ),
    Wrong.patch(
        "powers-to-65536", "The powers of two end at 65,536.",
        "max(8, 2 ** n.bit_length() // 8)", "max(8, min(2**16, 2 ** n.bit_length()) // 8)",
        "a reader who saw stub and text alone", unnamed="steps-of-64-at-most",
    ),
    Wrong.patch(
        "steps-of-64-at-most", "No step is wider than 64.",
        "max(8, 2 ** n.bit_length() // 8)",
        "min(64, max(8, 2 ** n.bit_length() // 8))",
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "a-tuple", "A tuple is as good as a list.", "return sizes, [", "return tuple(sizes), [",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "no-two-neighbours", "Far up, a size just below the maximum is one too many.", "if maximum:",
        "if maximum > 5000 and maximum - sizes[-1] == 1:\n        sizes[-1] = maximum\n    elif maximum:",
        "written to pass all checks that there were, and it did", unnamed="without-the-maximum",
    ),
)  # fmt: skip


def by_doublings(maximum: int, batches: list[int]) -> Answer:
    """The sizes of each doubling by range, cut at the maximum; the rung by bisection."""
    sizes = [1, 2, 4, 8]
    for power in range(4, 40):
        sizes += range(2 ** (power - 1) + max(8, 2**power // 8), 2**power + 1, max(8, 2**power // 8))
    sizes = [*sizes[: bisect_left(sizes, maximum)], *[maximum] * (maximum > 0)]
    places = [bisect_left(sizes, batch) for batch in batches]
    return sizes, [sizes[at] if at < len(sizes) else None for at in places]


def downwards(maximum: int, batches: list[int]) -> Answer:
    """A test for every number: is it a rung? The picks are found from the top."""

    def is_rung(size: int) -> bool:
        top = 1 << (size - 1).bit_length()
        return size in (1, 2, 4, 8, maximum) or (size > 8 and size % max(8, top // 8) == 0)

    sizes = [size for size in range(maximum, 0, -1) if is_rung(size)]
    picked: list[int | None] = []
    for batch in batches:
        holds = [size for size in sizes if size >= batch]
        picked.append(holds[-1] if holds else None)
    return sizes[::-1], picked


def by_recursion(maximum: int, batches: list[int]) -> Answer:
    """The ladder below the maximum, from the top of it; a dict from each batch to its size."""

    def below(size: int) -> list[int]:
        return [] if size >= maximum else [size, *below(size * 2 if size < 8 else size + max(size_step(size), 8))]

    def size_step(size: int) -> int:
        power = 1
        while power <= size:
            power *= 2
        return power // 8

    sizes = below(1) + ([maximum] if maximum > 0 else [])
    rung = {batch: size for low, size in zip([0, *sizes], sizes, strict=False) for batch in range(low + 1, size + 1)}
    return sizes, [rung.get(batch) for batch in batches]


RIGHT = (Right(by_doublings), Right(downwards), Right(by_recursion))

_SIZES = "sizes = [n for n in range(1, maximum) if n in {} or n % max({}) == 0]"
EQUIVALENT = {
    _SIZES.format("(1, 2, 4)", "2 ** n.bit_length() // 8, 8"): "the larger of two is the same in either order",
    _SIZES.format(
        "(1, 4, 2)", "8, 2 ** n.bit_length() // 8"
    ): "where a number stands in a tuple does not matter to `in`",
    _SIZES.format(
        "(2, 1, 4)", "8, 2 ** n.bit_length() // 8"
    ): "where a number stands in a tuple does not matter to `in`",
}


def ladder_and_padding(maximum: int, batches: list[int]) -> tuple[list[int], list[int | None]]:
    """The batch sizes that are captured, the largest first, and for each of `batches` its padding rows.

    The sizes are 1, 2, 4 and 8; from there on each is larger than the one before by an eighth of the first power of two
    above that one, but by 8 at least. None is above `maximum`, the most rows that may ever run, and it is itself one of
    them; with a maximum of 0 there are none. A batch goes through the smallest size that holds it: the rows between are
    padding. None stands for a batch that no size holds: it runs without a graph.
    """
    sizes, size = [], 1
    while size < maximum:
        sizes.append(size)
        size += min(size, max(8, 2 ** size.bit_length() // 8))
    sizes += [maximum] * (maximum > 0)
    padding = [min((size - batch for size in sizes if size >= batch), default=None) for batch in batches]
    return sizes[::-1], padding


def _padding(result: Answer, maximum: int, batches: list[int]) -> tuple[list[int], list[int | None]]:
    pairs = zip(result[1], batches, strict=True)
    return result[0][::-1], [None if size is None else size - batch for size, batch in pairs]


EDITIONS = (
    Edition(
        "padded-rows", "the largest size comes first, and for each batch its padding rows are told", ladder_and_padding,
        args=lambda *args: args, back=lambda *args: args, result=_padding,
    ),
)  # fmt: skip
