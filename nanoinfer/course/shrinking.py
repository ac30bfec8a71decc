"""A failing input made small: the fewest rows, columns and whole numbers that still show the failure."""

from __future__ import annotations

from collections.abc import Callable

from nanoinfer.course.cases import Case

TRIES = 60  # calls of the solution at most
OTHER_SEEDS = 6


def smallest(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case found on which `fails` still holds; `case` itself, which fails, where there is none."""
    left = TRIES

    def still(candidate: Case) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    best = case
    least = {name: low for name, (low, _) in case.drawn.items()}
    for other in range(OTHER_SEEDS):  # all sizes at their lowest: where that shows it, nothing is smaller
        candidate = Case(f"{case.seed}/small {other}" if other else case.seed, least, simple=True)
        if still(candidate):
            return candidate
    for seed in [case.seed, *(f"{case.seed}/simple {other}" for other in range(2))]:
        candidate = Case(seed, {name: value for name, (_, value) in case.drawn.items()}, simple=True)
        if still(candidate):
            best = candidate
            break
    return _fewer(best, dict(case.drawn), still)


def _fewer(best: Case, drawn: dict[str, tuple[int, int]], still: Callable[[Case], bool]) -> Case:
    """One size after the other, as small as it may become while it still fails."""
    for name, (low, value) in drawn.items():
        for size in range(low, value):
            sizes = {n: v for n, (_, v) in drawn.items()} | dict(best.sizes) | {name: size}
            found = next((c for c in _seeds(best, sizes) if still(c)), None)
            if found is not None:
                best = found
                break
    return best


def _seeds(best: Case, sizes: dict[str, int]) -> list[Case]:
    return [Case(seed, sizes, best.simple) for seed in (best.seed, f"{best.seed}/again")]
