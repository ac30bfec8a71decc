"""Exercise 4.4: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from bisect import bisect_left

from nanocourse.exercises.exercise import edition

Answer = tuple[list[int], list[int | None]]


def by_doublings(maximum: int, batches: list[int]) -> Answer:
    """The sizes of each doubling by range, cut at the maximum; the rung by bisection."""
    sizes = [1, 2, 4, 8]
    for power in range(4, 40):
        sizes += range(2 ** (power - 1) + max(8, 2**power // 8), 2**power + 1, max(8, 2**power // 8))
    sizes = [*sizes[: bisect_left(sizes, maximum)], *[maximum] * (maximum > 0)]
    places = [bisect_left(sizes, batch) for batch in batches]
    return sizes, [sizes[at] if at < len(sizes) else None for at in places]


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


def _padding(result: Answer, maximum: int, batches: list[int]) -> tuple[list[int], list[int | None]]:
    pairs = zip(result[1], batches, strict=True)
    return result[0][::-1], [None if size is None else size - batch for size, batch in pairs]


@edition("padded-rows", "the largest size comes first, and for each batch its padding rows are told", result=_padding)
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
