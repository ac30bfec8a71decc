"""Exercise 3.5: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import math
from collections.abc import Callable

from nanocourse.exercises.exercise import Edition, Right, Wrong

Read = Callable[[int], tuple[list[float], list[float]]]


def no_maximum(read: Read, tiles: int) -> tuple[float, float, float]:
    """The exponentials are added as they are; the maximum is only for a softmax that is done at once."""
    maximum, total, acc = -math.inf, 0.0, 0.0
    for tile in range(tiles):
        scores, values = read(tile)
        maximum = max(maximum, *scores)
        total += sum(math.exp(s) for s in scores)
        acc += sum(math.exp(s) * v for s, v in zip(scores, values, strict=True) if s > -math.inf)
    scale = math.exp(-maximum) if total else 0.0
    return maximum, total * scale, acc * scale


def two_passes(read: Read, tiles: int) -> tuple[float, float, float]:
    """The highest score must be known first, so the scores are read twice."""
    maximum = max((max(read(tile)[0]) for tile in range(tiles)), default=-math.inf)
    total = acc = 0.0
    for tile in range(tiles):
        for score, value in zip(*read(tile), strict=True):
            if score > -math.inf:
                total += math.exp(score - maximum)
                acc += math.exp(score - maximum) * value
    return maximum, total, acc


def mean_of_tiles(read: Read, tiles: int) -> tuple[float, float, float]:
    """Each tile's own softmax is its result, and the whole is their mean."""
    maximum, total, acc, seen = -math.inf, 0.0, 0.0, 0
    for tile in range(tiles):
        scores, values = read(tile)
        top = max(scores)
        if top == -math.inf:
            continue
        weights = [math.exp(score - top) for score in scores]
        seen += 1
        maximum, total = max(maximum, top), total + sum(weights)
        acc += sum(w * v for w, v, s in zip(weights, values, scores, strict=True) if s > -math.inf) / sum(weights)
    return maximum, total, acc / max(1, seen) * total


GUARDED = "sum(w * v for w, v, s in zip(weights, values, scores, strict=True) if s > -math.inf)"
SKIPPED = "        if higher == -math.inf:\n            continue\n"


def lowest_of_a_kernel(
    read: Callable[[int], tuple[list[float], list[float]]], tiles: int
) -> tuple[float, float, float]:
    """No score is below -3e38, so that a maximum may begin there."""
    highest, total, acc = -3e38, 0.0, 0.0
    for tile in range(tiles):
        scores, values = read(tile)
        new = max(highest, *scores)
        rescale = math.exp(highest - new)
        total, acc = total * rescale, acc * rescale
        for score, value in zip(scores, values, strict=True):
            if score > -math.inf:
                weight = math.exp(score - new)
                total += weight
                acc += weight * value
        highest = new
    return (highest, total, acc) if total else (-math.inf, 0.0, 0.0)


def hardly_weighs(read: Read, tiles: int) -> tuple[float, float, float]:
    """A tile far below the highest score weighs nothing, and can be passed over."""
    highest, total, acc = -math.inf, 0.0, 0.0
    for scores, values in map(read, range(tiles)):
        top = max(scores, default=-math.inf)
        if top == -math.inf or top < highest - 20:
            continue
        higher = max(highest, top)
        total, acc = total * math.exp(highest - higher), acc * math.exp(highest - higher)
        highest = higher
        for score, value in zip(scores, values, strict=True):
            if score > -math.inf:
                total, acc = total + math.exp(score - highest), acc + math.exp(score - highest) * value
    return highest, total, acc


WRONG = (
    Wrong.patch(
        "nothing-rescaled", "Partial sums of tiles can be added as they are.",
        "math.exp(maximum - higher)", "1.0", "an author's own slip: each tile is right by itself",
    ),
    Wrong.patch(
        "values-not-rescaled", "Only the sum of weights is relative to the maximum; the values are values.",
        "acc * rescale", "acc", "Dao-AILab/flash-attention, its first derivation read in haste: both are rescaled",
    ),
    Wrong.patch(
        "sum-not-rescaled", "Only the weighted values are relative to the maximum; the sum just counts.",
        "total * rescale", "total", "the same, the other way round",
    ),
    Wrong.patch(
        "rescaled-upwards", "When the maximum rises, the old sums are raised to its level.",
        "math.exp(maximum - higher)", "math.exp(min(700.0, higher - maximum))",
        "an author's own slip: old and new in each other's place",
    ),
    Wrong.patch(
        "this-tiles-maximum", "Each tile is relative to its own highest score.",
        "max(maximum, *scores)", "max(scores)", "an author's own slip: a maximum that does not run",
    ),
    Wrong.patch(
        "begins-at-0", "A maximum begins at 0, as sums do.", "-math.inf, 0.0, 0.0", "0.0, 0.0, 0.0",
        "an author's own slip: right as long as some score is above 0, and low scores vanish",
    ),
    Wrong(no_maximum, "dwavesystems/dwave-optimization#555, blue-oil/blueoil#945"),
    Wrong(two_passes, "Milakov and Gimelshein 2018, section 2: the safe softmax that they improve"),
    Wrong(mean_of_tiles, "what a mean of means does to groups of unequal weight"),
    Wrong.patch(
        "nan-times-0", "What has weight 0 does not count.", GUARDED,
        "sum(w * v for w, v in zip(weights, values, strict=True))",
        "vllm-project/vllm#641, #936; Dao-AILab/flash-attention#1745",
    ),
    Wrong.patch(
        "empty-tile-first", "There is always a token before an empty slot.", SKIPPED, "",
        "vllm-project/vllm#57094, sgl-project/sglang#7233: minus infinity less minus infinity",
    ),
    Wrong.patch(
        "only-nan-left-out", "What is in an empty slot is NaN.",
        "if s > -math.inf)",
        "if v == v)",
        "written to pass all checks that there were, and it did", unnamed="nan-times-0",
    ),
    Wrong.patch(
        "weight-0-is-none", "What has weight 0 is no token.",
        "if s > -math.inf)", "if w)", "a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "empty-tile-ends", "Behind a tile without a token there is none.",
        "        rescale =", "        if total and max(scores) == -math.inf:\n            break\n        rescale =",
        "a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "zero-is-none", "A maximum of 0 is none yet.",
        'rescale = math.exp(maximum - higher)',
        'rescale = math.exp(maximum - higher) if maximum else 0.0',
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong(lowest_of_a_kernel, "a try of somebody who saw stub and text alone, which passed"),
    Wrong(hardly_weighs, "a third reader who saw stub and text alone; it passed"),
    Wrong.patch(
        "far-below-is-none", 'A tile that lies 100 below the highest score weighs nothing.',
        'if higher == -math.inf',
        'if higher == -math.inf or max(scores) < higher - 100',
        "a fourth reader who saw stub and text alone; it passed", unnamed="hardly-weighs",
    ),
    Wrong.patch(
        "rises-by-more-than-a-millionth", "Scores that differ by a millionth are equal.",
        "higher = max(maximum, *scores)",
        "higher = max(maximum, *scores)\n        higher = maximum if higher - maximum < 1e-6 else higher",
        "a fifth reader who saw stub and text alone; it passed", unnamed="no-rescale",
    ),
    Wrong.patch(
        "tiny-is-nothing", "A value near 0 is what rounding has left.",
        "if s > -math.inf)", "if s > -math.inf and not abs(v) < 1e-12)",
        "written to pass all checks that there were, and it did", unnamed="no-rescale",
    ),
    Wrong.patch(
        "infinite-is-no-value", "A value that is infinite belongs to no token.",
        "if s > -math.inf)", "if s > -math.inf and not math.isinf(v))",
        "written to pass all checks that there were, and it did", unnamed="no-rescale",
    ),
)  # fmt: skip


def token_by_token(read: Read, tiles: int) -> tuple[float, float, float]:
    """A tile is taken as so many tiles of one token."""
    state = (-math.inf, 0.0, 0.0)
    for tile in range(tiles):
        for score, value in zip(*read(tile), strict=True):
            top, total, acc = state
            if score == -math.inf:
                continue
            if score > top:
                shrink = math.exp(top - score)
                state = (score, total * shrink + 1.0, acc * shrink + value)
            else:
                state = (top, total + math.exp(score - top), acc + math.exp(score - top) * value)
    return state


def each_tile_then_joined(read: Read, tiles: int) -> tuple[float, float, float]:
    """Every tile is finished by itself, relative to its own highest score, and all are joined at the end."""
    parts = []
    for tile in range(tiles):
        real = [(s, v) for s, v in zip(*read(tile), strict=True) if s != -math.inf]
        if real:
            top = max(s for s, _ in real)
            exps = [math.exp(s - top) for s, _ in real]
            parts.append((top, math.fsum(exps), math.fsum(e * v for e, (_, v) in zip(exps, real, strict=True))))
    if not parts:
        return -math.inf, 0.0, 0.0
    highest = max(top for top, _, _ in parts)
    scaled = [(math.exp(top - highest), total, acc) for top, total, acc in parts]
    return highest, sum(e * total for e, total, _ in scaled), sum(e * acc for e, _, acc in scaled)


def kept_then_weighed(read: Read, tiles: int) -> tuple[float, float, float]:
    """Reading is one pass; scores and values are kept, and weighed afterwards, in memory that a kernel lacks."""
    kept = [(s, v) for tile in range(tiles) for s, v in zip(*read(tile), strict=True) if math.isfinite(s)]
    if not kept:
        return -math.inf, 0.0, 0.0
    top = max(kept)[0]
    return top, sum(math.exp(s - top) for s, _ in kept), sum(math.exp(s - top) * v for s, v in kept)


RIGHT = (Right(token_by_token), Right(each_tile_then_joined), Right(kept_then_weighed))

_ADDED = "acc = acc * rescale + sum((w * v for w, v, s in zip({}, scores, strict={}) if s > -math.inf))"
EQUIVALENT = {
    _ADDED.format("values, weights", "True"): "a product has no order",
    _ADDED.format("weights, values", "False"): "a tile has as many values as scores",
}


def attend_tiles(read: Callable[[int], tuple[list[float], list[float]]], tiles: int) -> tuple[float, float, float]:
    """One pass over the tiles of a context: the highest score, the sum of weights, the weighted sum of values.

    read: the number of a tile, from 0 -> its scores and its values, one of each a token, in a tile one at least. Each
    tile is read once, in order. Scores are in units of log 2, since a GPU's exponential is that of 2: weights are
    2 ** (score - highest), where `highest` is that of all tiles, so the last two of the result are relative to the
    first. A score is any float, below -3e38 too; one of minus infinity belongs to no token, and its value may be
    anything, NaN too. Where there is no token at all, the result is minus infinity and two zeros. Milakov and
    Gimelshein 2018, section 3.
    """
    top, total, acc = -math.inf, 0.0, 0.0
    for tile in range(tiles):
        real = [(score, value) for score, value in zip(*read(tile), strict=True) if score > -math.inf]
        if real:
            before, top = top, max(top, *(score for score, _ in real))
            total, acc = (kept * 2.0 ** (before - top) for kept in (total, acc))
            total += sum(2.0 ** (score - top) for score, _ in real)
            acc += sum(2.0 ** (score - top) * value for score, value in real)
    return top, total, acc


LOG2_E = math.log2(math.e)


def _scaled(read: Read, by: float) -> Read:
    def scaled(tile: int) -> tuple[list[float], list[float]]:
        scores, values = read(tile)
        return [score * by for score in scores], values

    scaled.__doc__ = f"{read.__doc__}; the scores times {by:.4f}"  # as the stub's example shows it
    given = getattr(read, "gives", ())
    scaled.gives = [(tile, ([s * by for s in scores], held)) for tile, (scores, held) in given]  # type: ignore[attr-defined]
    return scaled


EDITIONS = (
    Edition(
        "powers-of-two", "scores are in units of log 2: a weight is 2 ** (score - maximum)", attend_tiles,
        args=lambda read, tiles: (_scaled(read, LOG2_E), tiles),
        back=lambda read, tiles: (_scaled(read, 1 / LOG2_E), tiles),
        result=lambda state, *args: (state[0] * LOG2_E, *state[1:]),
    ),
)  # fmt: skip
