"""Exercise 1.5: the random numbers of a row, which depend on nothing but its seed, its step and the token's id."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import IMPORTS, MANY, Call, Case, Check, Function, Places, Spec, call
from nanoinfer.engine.sampling import random_bits

# Seeds whose hash at step 1 is, for one of the ids below 8: small or middling; 0, or even and small; close to 2^32.
SMALL = (131960, 505744, 537986, 37007, 75608, 108041, 34391, 48890)
EVEN = (539065626, 867483917, 356718157, 356730991)
LARGE = (499214, 9771805, 11627064)


def swap(mine: Function) -> Places:
    """Noise of all ids comes from it, and on a CPU that of the few that are looked at."""

    def noise(rows: Any, ids: Tensor) -> Tensor:
        return mine(rows.seed, rows.step, int(ids.max()) + 1).gather(1, ids)

    return {"nanoinfer.engine.sampling:gumbel": mine, "nanoinfer.engine.cpu_sampling:noise": noise}


EXERCISE = Spec(
    reference="nanoinfer.engine.sampling:gumbel",
    lines=6,
    example=lambda: call(torch.tensor([7, 8]), torch.tensor([0, 0]), 4),
    swap=swap,
    section="A sequence's own noise",
    axes=("row", "id"),
    typed=True,
    exact=True,
    tolerance=5e-6,
    imports=(*IMPORTS, "", "from nanoinfer.engine.sampling import random_bits"),
)


def _seeds(case: Case, low: int, high: int, count: int, steps: torch.Tensor, vocab: int) -> torch.Tensor:
    """Seeds whose hash gives no u where float32 and float64 part, so that either is a right answer.

    That is close to 1, and from 2^-10, where a series gives way to the logarithm of 1 - u, up to 2^-7.
    """
    for at in range(1000):
        seeds = case.ints("seed" if at == 0 else f"seed {at}", low, high, count)
        u = random_bits(seeds[:, None], steps[:, None], torch.arange(vocab)) / 2**32
        if not bool(((u > 1 - 2.0**-9) | ((u > 2.0**-10) & (u < 2.0**-7))).any()):
            break
    return seeds


def rows_differ(case: Case) -> Call:
    """Each row's noise is that of its own seed, whichever row it is and whoever stands beside it."""
    rows, vocab = case.size("rows", 2, 4), case.size("vocabulary", 1, 40)
    steps = case.ints("step", 1, 9, 1).expand(rows)
    return call(_seeds(case, 0, 2**31, rows, steps, vocab), steps, vocab)


def steps_differ(case: Case) -> Call:
    """The same seed gives other noise at another step: a row draws anew for every token."""
    rows, vocab = case.size("rows", 2, 4), case.size("vocabulary", 1, 3)
    steps = torch.tensor(case.sample("steps", range(9), rows))
    return call(_seeds(case, 0, 2**31, 1, steps, vocab).expand(rows), steps, vocab)


def long_seeds(case: Case) -> Call:
    """A seed has 63 bits, and all of them count."""
    step, vocab = torch.tensor([0]), case.size("vocabulary", 1, 3)
    low, high = case.turn(((2**33, 2**62), (2**62, 2**63 - 2)))
    return call(_seeds(case, low, high, 1, step, vocab), step, vocab)


def _chosen(case: Case, seeds: tuple[int, ...]) -> Call:
    return call(torch.tensor([case.turn(seeds)]), torch.tensor([1]), case.size("vocabulary", 8, 30))


def tiny_u(case: Case) -> Call:
    """Where u is tiny, E is u to full precision: these are the highest noises, the ones that win."""
    return _chosen(case, SMALL)


def u_never_zero(case: Case) -> Call:
    """The lowest bit is set, so that u is never 0 and the noise never infinite."""
    return _chosen(case, EVEN)


def u_never_one(case: Case) -> Call:
    """Where u would round to 1, E stays finite, and so does the noise."""
    return _chosen(case, LARGE)


def any_place(case: Case) -> Call:
    """Steps and ids may be any: far ones, many ids, many rows, one of each, and the same seed again at another step."""
    kind = case.turn(("far steps", "many ids", "many rows", "one", "before", "again", "sums"))
    if kind == "sums":  # of seed and steps, by what one might take a step to be below, or in either order
        seeds, steps = torch.tensor([1, 0, 0, 0, 3, 5, 4, 0, 2]), torch.tensor([0, 256, 1024, 65_536, 5, 3, 4, 0, 0])
        return call(seeds, steps, 1)
    if kind in ("before", "again"):  # no u is close to 1 in either
        return call(torch.tensor([0, 5, 5]), torch.tensor([3, 3, 3] if kind == "before" else [3, 4, 4]), 4)
    if kind == "far steps":
        steps = torch.tensor([255, 256, 65_537, 2**24, 2**24 + 1, 2**31 + 1])[case.permutation("order", 6)]
        return call(_seeds(case, 0, 2**31, 1, steps, 2).expand(6), steps, 2)
    rows, vocab = {"many ids": (1, 280), "many rows": (300, 2), "one": (1, 1)}[kind]
    steps = torch.full((rows,), 2)
    return call(_seeds(case, 0, 2**62, rows, steps, vocab), steps, vocab)


def far_ids(case: Case) -> Call:
    """Ids beyond 65,536, and rows beyond 1,024, have noise of their own; of so many some u is rounded, as it may be."""
    step, more = torch.tensor([case.size("step", 0, 9), 5]), case.size("more", 1, 99)
    if case.turn((False, True)):  # two seeds at several steps, and all others once
        seeds, steps = case.ints("seed", 0, 2**62, MANY), case.ints("steps", 0, 4, MANY)
        return call(seeds.index_fill(0, torch.arange(0, MANY, 9), 5), steps, 3)
    return call(case.ints("seed", 0, 2**31, 2), step, 70_000 + more)


CHECKS = (
    Check(far_ids, 2, tolerance=0.02, wide=True), Check(any_place, 7, wide=True), Check(rows_differ, 3),
    Check(steps_differ), Check(long_seeds), Check(tiny_u, 8), Check(u_never_zero, 4), Check(u_never_one, 3),
)  # fmt: skip
