"""Exercise 2.4: where the tokens of a padded step stand, and where each row goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from nanocourse.exercises import FAR, MANY, Call, Case, Check, Function, Places, Spec, call
from nanoinfer.model.batch import Batch


def places(real: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """The position of every column, (B, T) int64, and of each row's next token, (B,) int64.

    real (B, T) bool: which columns hold a token; the others are padding, on the left, on the right, or on both sides.
    before (B,) int64: how many tokens of each row are in the cache already. A padded column gets position 0.
    """
    counted = real.cumsum(1)  # (B, T) tokens up to and with each column
    positions = (before[:, None] + counted - 1).masked_fill(~real, 0)
    return positions, before + counted[:, -1]


def swap(mine: Function) -> Places:
    """Batch.of gives a step its positions, and each sequence goes on where the solution says."""
    of: Any = Batch.of
    following: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def of_mine(cls: type[Batch], work: Any, device: torch.device) -> Batch:
        batch = of(work, device)
        real = batch.padded(torch.ones_like(batch.positions)) > 0  # (B, T)
        before = [following.get(s, start) if start else 0 for s, start, _ in work]
        positions, after = mine(real, torch.tensor(before, device=device))
        following.update(zip([s for s, _, _ in work], after.tolist(), strict=True))
        return replace(batch, positions=batch.packed(positions.long()))

    return {"nanoinfer.model.batch:Batch.of": classmethod(of_mine)}


def _example() -> Call:
    return call(torch.tensor([[True, True, True], [False, True, True], [True, False, False]]), torch.tensor([0, 0, 8]))


EXERCISE = Spec(
    reference=places,
    lines=4,
    example=_example,
    section="Padding, and where decode goes on",
    axes=("of positions, next: number", "row", "column"),
    typed=True,
    exact=True,
    swap=swap,
)


def _real(left: Tensor, length: Tensor, columns: int) -> Tensor:
    """(B, columns): `length` real columns from column `left` on."""
    column = torch.arange(columns)
    return (column >= left[:, None]) & (column < (left + length)[:, None])


def _lengths(case: Case, longest: int) -> Tensor:
    """Different lengths in any order, the longest among them."""
    rows = min(case.size("rows", 2, 3), longest)
    lengths = torch.tensor([*case.sample("lengths", range(1, longest), rows - 1), longest])
    return lengths[case.permutation("order", rows)]


def padded_on_the_right(case: Case) -> Call:
    """With padding on the right, a row goes on behind its last real token, and not behind the padding."""
    longest = case.size("longest", 2, 5)
    lengths = _lengths(case, longest)
    return call(_real(lengths * 0, lengths, longest + case.size("more", 0, 2)), lengths * 0)


def padded_on_the_left(case: Case) -> Call:
    """With padding on the left, a row's first real token stands at position 0."""
    longest = case.size("longest", 2, 5)
    lengths = _lengths(case, longest)
    return call(_real(longest - lengths, lengths, longest), lengths * 0)


def later_chunks(case: Case) -> Call:
    """Positions go on where the row's text in the cache ends, row by row."""
    B, T = case.size("rows", 2, 3), case.size("tokens", 1, 4)
    before = torch.tensor(case.sample("before", range(1, 20), B))
    return call(torch.ones(B, T, dtype=torch.bool), before)


COUNTS = [n for n in FAR if n < 2**31 - 9]  # a right answer may count in 32 bits


def any_padding(case: Case) -> Call:
    """Rows padded left, right, on both sides and not at all share a step, each behind what it has; one may be empty."""
    T, kind = case.size("columns", 4, 6), case.turn(("all sides", "an empty row", "far", "one column", "many columns",
                                                        "first empty", "last empty", "all empty", "one row",
                                                        "many rows", "farther", "1", "2", "3",
                                                        "an empty one", "plain", "single", "alike",
                                                        "left"))  # fmt: skip
    left, length = torch.tensor([0, T - 2, 1, 0]), torch.tensor([T - 1, 2, T - 2, T])
    if kind == "an empty row":
        length[case.choice("empty", (0, 2))] = 0
    if kind == "one column":
        T, left, length = 1, torch.zeros(4).long(), torch.tensor([1, 0, 1, 0])
    if kind == "many columns":
        T = 2**11 + 300
        left, length = torch.tensor([0, 9, T - 10, 7]), torch.tensor([T - 10, T - 9, 10, T - 20])
    if kind == "left":
        left, length = torch.tensor([1, 2, 1]), torch.tensor([T - 1, T - 2, T - 1])
    if kind in ("plain", "single"):
        T = T if kind == "plain" else 1
        left, length = left * 0, length * 0 + T
    if kind in ("all empty", "an empty one"):
        length = length * 0
    if kind == "many rows":
        left, length = case.ints("left", 0, 2, MANY), case.ints("length", 0, 2, MANY)
    if kind in "123":  # every row of so many columns that there is
        T = int(kind)
        left, length = torch.tensor([(at, n) for at in range(T) for n in range(T - at + 1)]).T
    if kind == "farther":
        left, length = case.ints("left", 0, 2, len(COUNTS)), case.ints("length", 1, 2, len(COUNTS))
    real = _real(left, length, T)[
        case.permutation("order", len(left)) if kind not in ("one row", "an empty one", "single") else [2]
    ]
    if kind in ("first empty", "an empty row", "last empty"):
        real[{"first empty": 0, "an empty row": 1, "last empty": -1}[kind]] = False
    before = (
        torch.tensor(COUNTS) if kind == "farther" else case.ints("before", int(kind == "an empty one"), 9, len(real))
    )
    before = before * 0 + {"plain": 0, "alike": 7}[kind] if kind in ("plain", "alike") else before
    return call(real, before + (2**24 + 1) * (kind == "far"))


CHECKS = (
    Check(padded_on_the_right, 3), Check(padded_on_the_left, 3), Check(later_chunks, 3),
    Check(any_padding, 19, wide=True),
)  # fmt: skip
