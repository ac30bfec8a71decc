"""Exercise 3.5: softmax over a context that comes tile by tile, each tile once."""

from __future__ import annotations

import math
from collections.abc import Callable

from nanocourse.exercises import Call, Case, Check, Spec, call


def attend_tiles(read: Callable[[int], tuple[list[float], list[float]]], tiles: int) -> tuple[float, float, float]:
    """One pass over the tiles of a context: the highest score, the sum of weights, the weighted sum of values.

    read: the number of a tile, from 0 -> its scores and its values, one of each a token, in a tile one at least. Each
    tile is read once, in order. Weights are exp(score - highest), where `highest` is that of all tiles, so the last two
    of the result are relative to the first. A score is any float, below -3e38 too; one of minus infinity belongs to no
    token, and its value may be anything, NaN too. Where there is no token at all, the result is minus infinity and two
    zeros. Milakov and Gimelshein 2018, section 3.
    """
    maximum, total, acc = -math.inf, 0.0, 0.0
    for tile in range(tiles):
        scores, values = read(tile)
        higher = max(maximum, *scores)
        if higher == -math.inf:
            continue
        rescale = math.exp(maximum - higher)
        weights = [math.exp(score - higher) for score in scores]
        total = total * rescale + sum(weights)
        acc = acc * rescale + sum(w * v for w, v, s in zip(weights, values, scores, strict=True) if s > -math.inf)
        maximum = higher
    return maximum, total, acc


def _lent(scores: list[list[float]], values: list[list[float]]) -> Call:
    """A call whose `read` hands out these tiles, and tells afterwards in which order they were read."""
    asked: list[int] = []

    def read(tile: int) -> tuple[list[float], list[float]]:
        asked.append(tile)
        return scores[tile], values[tile]

    read.__doc__ = "tile 0 -> ([1, 3], [10, 20]); tile 1 -> ([2, 5], [30, 40])"  # as the stub's example shows it
    read.gives = [((tile,), pair) for tile, pair in enumerate(zip(scores, values, strict=True))]  # type: ignore[attr-defined]
    return call(read, len(scores), observe=lambda: {"tiles read": asked})


EXERCISE = Spec(
    reference=attend_tiles,
    lines=11,
    example=lambda: _lent([[1.0, 3.0], [2.0, 5.0]], [[10.0, 20.0], [30.0, 40.0]]),
    section="Online softmax, step by step",
    axes=(("the maximum",), ("the sum",), ("the weighted sum",)),
    tolerance=1e-6,
    imports=("import math",),
)


def _tiles(case: Case, count: int, width: int, scale: float, shift: float = 0.0) -> tuple[list[list[float]], ...]:
    scores = (case.floats("scores", count, width) * scale + shift).tolist()
    return scores, case.floats("values", count, width).tolist()


def rising(case: Case) -> Call:
    """When a tile brings a higher score, both sums are corrected before its own are added."""
    scores, values = _tiles(case, case.size("tiles", 2, 4), case.size("tokens", 1, 3), 0.5)
    return _lent([[s + 1.5 * at for s in tile] for at, tile in enumerate(scores)], values)


def falling(case: Case) -> Call:
    """When a tile brings no higher score, what is there stays as it is, and lower scores weigh less, below 0 too."""
    scores, values = _tiles(case, case.size("tiles", 2, 4), case.size("tokens", 1, 3), 0.5)
    highest = case.turn((0.0, max(scores[0])))
    return _lent([[s - highest - 4.0 * at for s in tile] for at, tile in enumerate(scores)], values)


def large_scores(case: Case) -> Call:
    """Scores in the thousands, of either sign, neither overflow nor vanish."""
    return _lent(*_tiles(case, 1, case.size("tokens", 1, 3), 1.0, case.choice("shift", (-3000.0, 3000.0))))


def empty_slots(case: Case) -> Call:
    """Slots of no token weigh nothing, whatever their values are, and a tile or a context of nothing else is empty."""
    empty, last = case.choice("empty", ((), (0,), (0, 1))), case.size("tokens", 1, 2)
    scores, values = _tiles(case, max(1, len(empty)) if len(empty) != 1 else 2, 3, 1.0)
    for tile in range(len(scores)):
        for slot in range(0 if tile in empty else last, 3):
            scores[tile][slot], values[tile][slot] = -math.inf, math.nan
    return _lent(scores, values)


def any_context(case: Case) -> Call:
    """No tile, many, of any length; scores tie, rise a little, are 0 or far below; empty slots hold anything."""
    kind = case.turn((  # first those that alone tell a mistake by its name
        "NaN weighs nothing", "hardly weighs", "zero", "lowest", "empty between", "ties", "low", "infinite",
        "finite", "no tile", "many", "empty last", "NaN in a tile", "weighs 1e-260", "rises a little", "ragged",
    ))  # fmt: skip
    if kind == "no tile":
        return _lent([], [])
    scores, values = _tiles(case, 1100 if kind == "many" else 3, case.size("tokens", 2, 3), 1.0)
    if kind.startswith("empty"):
        at = 1 if kind == "empty between" else 2
        scores[at] = [-math.inf] * len(scores[at])
        values[at][0] = math.nan
    if kind == "NaN weighs nothing":  # but is a token's
        scores[1][0], values[1][0] = -1000.0, math.nan
    if kind == "NaN in a tile":  # that weighs nothing
        scores[1], values[1][0] = [-1000.0] * len(scores[1]), math.nan
    if kind in ("hardly weighs", "weighs 1e-260"):  # but has large values
        down, times = {"hardly weighs": (30.0, 1e15), "weighs 1e-260": (600.0, 1e270)}[kind]
        scores[1:] = [[score - down for score in tile] for tile in scores[1:]]
        values[1:] = [[times * value for value in tile] for tile in values[1:]]
    if kind in ("ragged", "weighs 1e-260"):  # a tile of one token, and longer ones around it
        scores[1], values[1] = scores[1][:1], values[1][:1]
    levels = {"ties": (2.0, 0.0), "zero": (0.0, 1.0), "lowest": (-1.24e308, 0.0), "rises a little": (1.0, 1e-4)}
    if kind in levels:  # of the first tile, and how far each is above the one before
        first, more = levels[kind]
        scores = [[first + more * at for _ in tile] for at, tile in enumerate(scores)]
    if kind == "low":
        scores = [[score - 100_000.0 for score in tile] for tile in scores]
    if kind in ("infinite", "finite"):
        dirt = {"infinite": (math.inf, -math.inf), "finite": (1e300, -7.0)}[kind]
        for tile, slots in enumerate(scores):
            slots[0], values[tile][0] = -math.inf, dirt[tile % 2]
    return _lent(scores, values)


def any_mixture(case: Case) -> Call:
    """Tiles of any lengths, of scores far apart and no token, whatever its slot holds; a token may hold infinity."""
    kind = case.turn(("any", "long", "any", "infinite", "any", "lowest to highest", *["any"] * 6))
    if kind != "any":
        scores, values = _tiles(case, 3, 1200 if kind == "long" else 2, 1.0)
        if kind == "infinite":
            values[case.choice("tile", (0, 2))][1] = case.choice("sign", (1, -1)) * math.inf
        if kind == "lowest to highest":
            scores = [[8e307 * at - 1e308] * 2 for at in range(3)]
        return _lent(scores, values)
    scores, values = _tiles(case, case.size("tiles", 1, 7), 6, case.choice("spread", (0.5, 20.0, 400.0)))
    for tile, (own, beside) in enumerate(zip(scores, values, strict=True)):
        for slot, free in enumerate(case.ints(f"free {tile}", 0, 2, 6).tolist()):
            if not free:
                own[slot] = -math.inf
                beside[slot] = case.choice(f"holds {tile} {slot}", (math.nan, math.inf, -math.inf, 1e300, 0.0))
        del own[1 + tile % 6 :], beside[1 + tile % 6 :]
    return _lent(scores, values)


def nearly_ties(case: Case) -> Call:
    """The highest score is the highest by however little, and the sums are relative to it."""
    more = case.turn((1e-7, 1e-9, 1e-12, -1e-9))
    return _lent(*([[[start + more * at] for at in range(3)] for start in (1.0, 2.0)]))


def tiny_values(case: Case) -> Call:
    """One token among slots of none: its value is the weighted sum, however small it is."""
    value = case.turn((1e-20, -1e-200)) * float(case.ints("times", 1, 9))
    return _lent([[-math.inf] * 2, [-math.inf, 0.0], [-math.inf]], [[math.nan] * 2, [1.0, value], [math.inf]])


CHECKS = (
    Check(rising, 3), Check(falling, 3), Check(large_scores, 4), Check(empty_slots, 6),
    Check(any_context, 16, wide=True), Check(any_mixture, 12, wide=True),
    Check(nearly_ties, 4, wide=True, tolerance=1e-13), Check(tiny_values, 2, wide=True, tolerance=1e-210),
)  # fmt: skip
