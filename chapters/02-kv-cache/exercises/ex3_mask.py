"""Exercise 2.3: which slots a step's queries may read, and how far a step reads at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import MANY, Call, Case, Check, Function, Places, Spec, call
from nanoinfer.cache.captured import CapturedDense
from nanoinfer.cache.dense import DenseCache


def visible(positions: Tensor, longest: int, multiple: int, slots: int) -> Tensor:
    """Which slots of its own row each query may read: (B, 1, T, S) bool, True where it may.

    positions (B, T) int64: where each query's token stands in its own text; it has been written to that slot already.
    longest: no position of this step is `longest` or higher. slots: of a row of the cache, fewer than 2^15, so that
    a square of them fits into memory. S, here: how many slots are read, the lowest multiple of `multiple` that holds
    the first `longest` slots, but never more than all.
    """
    S = min(slots, -(-longest // multiple) * multiple)
    return torch.arange(S, device=positions.device) <= positions[:, None, :, None]


def swap(mine: Function) -> Places:
    """DenseCache.plan makes its mask with it, for prompts too, which the engine reads without a mask."""
    plan = DenseCache.plan

    def plan_with_mine(self: Any, batch: Any) -> Any:
        positions, multiple = batch.padded(batch.positions), CapturedDense.read_multiple  # (B, T)
        visible = mine(positions, batch.past + batch.longest, multiple, self.max_len)
        mask = self.k.new_zeros(visible.shape).masked_fill(~visible, -torch.inf)
        return plan(self, batch)._replace(mask=mask)

    return {"nanoinfer.cache.dense:DenseCache.plan": plan_with_mine}


EXERCISE = Spec(
    reference=visible,
    lines=3,
    example=lambda: call(torch.tensor([[2, 3]]), 4, 6, 1024),
    section="The mask of a cached step",
    axes=("row", "head", "query", "slot"),
    swap=swap,
)

MULTIPLES = (4, 8)


def prefill(case: Case) -> Call:
    """In a prompt that begins at position 0, each query reads itself and what is before it."""
    B, T, multiple = case.size("rows", 1, 2), case.size("tokens", 2, 6), case.choice("multiple", MULTIPLES)
    return call(torch.arange(T).expand(B, T).clone(), T, multiple, T + case.choice("more slots", (0, 1)))


def chunk(case: Case) -> Call:
    """A chunk's queries read all chunks before it, and of their own what is not later; each row begins where it is."""
    T, multiple = case.size("tokens", 2, 4), case.choice("multiple", MULTIPLES)
    starts = torch.tensor(case.sample("starts", range(1, 12), case.size("rows", 1, 2)))
    positions = starts[:, None] + torch.arange(T)
    return call(positions, int(positions.max()) + 1 + case.choice("padding", (0, 1, 2)), multiple, 64)


def decode(case: Case) -> Call:
    """One query a row reads all slots up to its own position, however long the other rows are."""
    positions = torch.tensor(case.sample("positions", range(12), case.size("rows", 2, 4)))[:, None]
    return call(positions, int(positions.max()) + 1, case.choice("multiple", MULTIPLES), 64)


def how_far(case: Case) -> Call:
    """As many slots are read as the longest row needs, rounded up to the multiple, and never more than there are."""
    multiple, whole = case.choice("multiple", (2, 3, 5)), case.size("multiples", 1, 3)
    slots = whole * multiple + case.size("beyond", 0, multiple - 1)
    longest = min(slots, case.choice("longest", (whole * multiple, whole * multiple - 1, slots, whole * multiple + 1)))
    return call(torch.tensor([[longest - 1]]), longest, multiple, slots)


ONE_AFTER_THE_OTHER = {  # longest, multiple, slots: each differs from the first in one number alone
    "first": (20, 16, 2000), "longer": (35, 16, 2000), "other multiple": (20, 300, 2000), "fewer slots": (20, 16, 24),
}  # fmt: skip


def any_step(case: Case) -> Call:
    """Positions may be in any order, beyond 2,048, or a single 0; a step reads further than their positions need."""
    kind = case.turn((
        "far", "no order", "no order, again", "one", "further", "middle", "rows", "queries", "single", "multiple",
        *ONE_AFTER_THE_OTHER, "end", "shortest", "shortest by one", "whole", *["few"] * 9,
    ))  # fmt: skip
    if kind in ONE_AFTER_THE_OTHER:
        return call(torch.tensor([[2, 0]]), *ONE_AFTER_THE_OTHER[kind])
    if kind == "few":
        B, T, multiple, more = case.small("rows tokens multiple more")
        positions = case.ints("positions", 0, 3, B, T)
        longest = int(positions.max()) + 1 + case.size("padding", 0, 2)
        return call(positions, longest, multiple, longest + more - 1)
    if kind == "middle":
        middle = 1 + torch.stack([case.permutation(f"middle {row}", 3) for row in range(2)])
        return call(torch.cat([torch.zeros(2, 1).long(), middle, torch.full((2, 1), 4)], 1), 5, 3, 64)
    if kind.startswith("no order"):
        return call(torch.stack([case.permutation(f"order {row}", 7)[:4] for row in range(2)]), 7, 4, 64)
    if kind == "one":
        return call(torch.zeros(1, 1).long(), 1, case.choice("multiple", (1, 4)), case.choice("slots", (1, 9)))
    return call(*{
        "rows": (case.ints("positions", 0, 9, MANY, 2), 10, 4, 64),
        "queries": (case.permutation("order", MANY)[None], MANY, 64, 2048),
        "shortest": (torch.zeros(2, 1).long(), 1, 4, 9), "shortest by one": (torch.zeros(2, 1).long(), 1, 1, 9),
        "whole": (case.ints("positions", 500, 524, 1, 2), 525, 75, 2000),  # 525 * (1 / 75) is more than 7
        "end": (4998 - case.permutation("order", 3)[None], 4999, 100, 4999),
        "single": (case.ints("position", 0, 5, 1, 1), 7, 1, 1024),  # one query that reads further than its own position
        "multiple": (case.ints("position", 0, 298, 1, 1), 300, 256, 1024),
        "far": (2047 + case.permutation("order", 4)[None], 2051, 64, 2100),
        "further": (case.ints("positions", 0, 9, 2, 1), 10 + case.size("further", 60, 200), 64, 1024),
    }[kind])  # fmt: skip


CHECKS = (Check(prefill, 3), Check(chunk, 3), Check(decode, 3), Check(how_far, 8), Check(any_step, 27, wide=True))
