"""Shrinking a failing input: the fewest rows and columns and the smallest whole numbers that still fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nanocourse.exercises.cases import Case

TRIES = 100  # calls of the solution at most
OTHER_SEEDS = 6
FEW = 8  # sizes, of which the smallest that fails is sought

Fails = Callable[[Case], bool]


def smallest(case: Case, fails: Fails) -> Case:
    """The smallest case found on which `fails` still holds; `case` itself, which fails, if nothing smaller does."""
    left = TRIES

    def still(candidate: Case) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    best = _lowest(case, still)
    if best is None:
        best = _fewer(_simple(case, still), dict(case.drawn), still)
    return best if best is case else _fewer_numbers(best, still)


def _lowest(case: Case, still: Fails) -> Case | None:
    """All sizes at their minimum: if that fails, no input has fewer numbers."""
    least = {name: low for name, (low, _) in case.drawn.items()}
    seeds = [case.seed, *(f"{case.seed}/small {other}" for other in range(1, OTHER_SEEDS))]
    return next((one for seed in seeds if still(one := Case(seed, least, simple=True))), None)


def _simple(case: Case, still: Fails) -> Case:
    """The same sizes with small whole numbers, if these fail too."""
    sizes = {name: value for name, (_, value) in case.drawn.items()}
    seeds = [case.seed, *(f"{case.seed}/simple {other}" for other in range(2))]
    return next((one for seed in seeds if still(one := Case(seed, sizes, simple=True))), case)


def _fewer(best: Case, drawn: dict[str, tuple[int, int]], still: Fails) -> Case:
    """Reduce one size after the other as far as it still fails: by one if there are few, or else by halves."""
    for name, (low, value) in drawn.items():
        least, most = low, value
        while least < most:
            size = least if most - least <= FEW else (least + most) // 2
            sizes = {n: v for n, (_, v) in drawn.items()} | dict(best.sizes) | {name: size}
            seeds = (best.seed, f"{best.seed}/again")
            found = next((one for seed in seeds if still(one := Case(seed, sizes, best.simple))), None)
            if found is None:
                least = size + 1
            else:
                best, most = found, size
    return best


def _fewer_numbers(best: Case, still: Fails) -> Case:
    """Replace by zeros whatever does not matter."""
    for name in list(best.floats_drawn):
        candidate = replace(best, zeros=best.zeros | {name}, drawn={}, floats_drawn={})
        if still(candidate):
            best = candidate
    return best
