"""Exercise 3.5: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import math
from collections.abc import Callable

from nanocourse.exercises.exercise import edition

Read = Callable[[int], tuple[list[float], list[float]]]


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


_ADDED = "acc = acc * rescale + sum((w * v for w, v, s in zip({}, scores, strict={}) if s > -math.inf))"
EQUIVALENT = {
    _ADDED.format("values, weights", "True"): "a product has no order",
}


LOG2_E = math.log2(math.e)


def _scaled(read: Read, by: float) -> Read:
    def scaled(tile: int) -> tuple[list[float], list[float]]:
        scores, values = read(tile)
        return [score * by for score in scores], values

    scaled.__doc__ = f"{read.__doc__}; the scores times {by:.4f}"  # as the stub's example shows it
    given = getattr(read, "gives", ())
    scaled.gives = [(tile, ([s * by for s in scores], held)) for tile, (scores, held) in given]  # type: ignore[attr-defined]
    return scaled


@edition(
    "powers-of-two",
    "scores are in units of log 2: a weight is 2 ** (score - maximum)",
    args=lambda read, tiles: (_scaled(read, LOG2_E), tiles),
    back=lambda read, tiles: (_scaled(read, 1 / LOG2_E), tiles),
    result=lambda state, *args: (state[0] * LOG2_E, *state[1:]),
)
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
