"""Exercise 2.5: attention over a cache whose other slots hold anything, NaN too."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, call, large_in_turn
from nanoinfer.cache.dense import DenseCache


def read(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Attention of a step's queries over their rows of the cache: q (B, T, H, D) -> (B, T, H, D), of any floating type.

    keys, values (B, S, H, D): all slots of each row; what this step brings is written already.
    positions (B, T) int64: a query reads slots 0 to its own position, and nothing else. With -1 it is padding: it
    reads no slot, and its result is zero, even if its query is NaN. Slots that it does not read may hold anything: an
    old text, infinity, NaN. NaN in any other query comes out of that query, and of no other.
    """
    q, keys, values = q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)  # (B, H, T or S, D)
    hidden = torch.arange(keys.shape[2], device=q.device) > positions[:, None, :, None]  # (B, 1, T, S)
    scores = (q @ keys.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    products = scores.softmax(-1)[..., None] * values[:, :, None]  # (B, H, T, S, D)
    return products.masked_fill(hidden[..., None], 0.0).sum(3).transpose(1, 2)


def swap(mine: Function) -> Places:
    """DenseCache.read, for prompts too, in a cache whose slots begin with NaN in every position."""
    plan = DenseCache.plan

    def plan_to_read(self: Any, batch: Any) -> Any:
        return plan(self, replace(batch, past=max(batch.past, 1)))

    def keep_from_nan(self: Any, sequence: Any, count: int) -> int:
        if not sequence.cached:
            self.k[:, sequence.row] = self.v[:, sequence.row] = torch.nan
        return count

    def begin_with_nan(self: Any, slots: Tensor) -> None:
        for held in (self.k, self.v):
            held.index_fill_(1, slots, torch.nan)

    def read(self: Any, plan: Any, layer: int, q: Tensor) -> Tensor:
        keys, values = (held[layer, plan.rows, : plan.mask.shape[-1]] for held in (self.k, self.v))
        positions = plan.batch.padded(plan.batch.positions + 1) - 1  # (B, T), -1 where padding fills a row up
        return plan.batch.packed(mine(plan.batch.padded(q), keys, values, positions).to(q.dtype))

    dense = "nanoinfer.cache.dense:DenseCache"
    return {
        f"{dense}.plan": plan_to_read, f"{dense}.keep": keep_from_nan, f"{dense}.read": read,
        "nanoinfer.cache.captured:CapturedDense.begin": begin_with_nan,
    }  # fmt: skip


def _example() -> Call:
    values = torch.tensor([[[[4.0]], [[8.0]], [[99.0]]]])
    return call(torch.zeros(1, 2, 1, 1), torch.zeros(1, 3, 1, 1), values, torch.tensor([[1, -1]]))


EXERCISE = Spec(
    reference=read,
    lines=7,
    example=_example,
    section="Old slots, empty slots, NaN",
    axes=("row", "column", "head", "channel"),
    refuse=(
        "nanoinfer.cache.dense:DenseCache.read",
        "nanoinfer.cache.dense:DenseCache.attend",
        "nanoinfer.cache.none:NoCache.attend",
    ),
    swap=swap,
)


def _cache(case: Case, B: int, S: int, heads: int = 1) -> tuple[Tensor, Tensor]:
    size = case.size("head size", 1, 3)
    return case.floats("keys", B, S, heads, size), case.floats("values", B, S, heads, size) + 3


def old_text(case: Case) -> Call:
    """Slots behind a row's own position hold an old text, and are not read, however long the other rows are."""
    B = case.size("rows", 2, 3)
    positions = torch.tensor(case.sample("positions", range(6), B))[:, None]
    keys, values = _cache(case, B, 6, case.size("heads", 1, 2))
    behind = torch.arange(6) > positions
    keys[behind] = keys[behind] * 3 + 1
    values[behind] = 40.0
    return call(case.floats("q", B, 1, *keys.shape[2:]), keys, values, positions)


def values_never_set(case: Case) -> Call:
    """NaN or infinity in a value that is not read changes nothing: 0 * NaN is NaN, so a weight of 0 is not enough."""
    S, B = case.size("slots", 3, 5), case.size("rows", 1, 2)
    positions = torch.tensor(case.sample("positions", range(S - 1), B))[:, None]
    keys, values = _cache(case, B, S)
    values[torch.arange(S) > positions] = case.choice("poison", (torch.nan, torch.inf, -torch.inf))
    return call(case.floats("q", B, 1, *keys.shape[2:]), keys, values, positions)


def keys_never_set(case: Case) -> Call:
    """NaN in a key that is not read changes nothing: NaN + (-inf) is NaN, so adding a mask is not enough."""
    S = case.size("slots", 2, 5)
    positions = torch.tensor([[case.size("position", 0, S - 2)]])
    keys, values = _cache(case, 1, S)
    keys[:, int(positions) + 1 :] = torch.nan
    values[:, int(positions) + 1 :] *= case.choice("values behind", (0, 1))
    return call(case.floats("q", 1, 1, *keys.shape[2:]), keys, values, positions)


def row_of_nobody(case: Case) -> Call:
    """A query that reads no slot gives zeros."""
    keys, values = _cache(case, 1, case.size("slots", 1, 4))
    return call(case.floats("q", 1, 1, *keys.shape[2:]), keys, values, torch.tensor([[-1]]))


def chunk(case: Case) -> Call:
    """Each query of a chunk reads the slots of the row up to its own position."""
    T, B = case.size("tokens", 2, 3), case.size("rows", 1, 2)
    before = torch.tensor(case.sample("before", range(1, 4), B))
    keys, values = _cache(case, B, 3 + T)
    return call(case.floats("q", B, T, *keys.shape[2:]), keys, values, before[:, None] + torch.arange(T))


def chunk_with_nan(case: Case) -> Call:
    """A NaN is met by those queries of a chunk that read its slot, and by no others; where it is read, it comes out."""
    T, before = case.size("tokens", 2, 3), case.size("before", 0, 2)
    keys, values = _cache(case, 1, before + T)
    values[:, -1, :, 0] = torch.nan
    return call(case.floats("q", 1, T, *keys.shape[2:]), keys, values, torch.arange(before, before + T)[None])


SIZES = dict(zip(("rows", "queries", "slots", "heads", "size"), large_in_turn(5), strict=True))
ONE = {"one NaN": torch.nan, "one infinite": torch.inf, "one below all": -torch.inf}  # of several numbers in a slot
KINDS = (torch.bfloat16, torch.float16, torch.float64)


def _counted(case: Case, kind: torch.dtype) -> Call:
    """300 slots in a type that does not count them: a query reads the one key that is far above those it may read."""
    keys, values = torch.zeros(2, 300, 2, 4), case.ints("values", -9, 9, 2, 300, 2, 4)
    keys[:, 0], keys[:, 257] = 1.0, 2.0
    values[:, 0], values[:, 257] = 11, 12
    q = torch.full((2, 4, 2, 4), 100).to(kind)
    values = values.to(kind) * (1e200 if kind == torch.float64 else 1.0)  # beyond the range of 32 bits
    return call(q, keys.to(kind), values, torch.tensor([[256, 257, 255, 299], [-1, 299, 256, 257]]))


def _little_weight(case: Case) -> Call:
    """A weight of e^-60 counts where its value is large."""
    keys, values = (torch.tensor(x).view(1, 3, 1, 1) for x in ([0.0, -60.0, 0.0], [1.0, 1e28, 2.0]))
    return call(torch.ones(1, 3, 1, 1), keys, values, torch.arange(3)[None])


def _below_all(case: Case) -> Call:
    """No stand-in for minus infinity is below -10^12; one slot: logarithms vanish beside that."""
    values = case.floats("values", 1, 5, 1, 1)
    return call(torch.full((1, 3, 1, 1), -1e6), torch.full_like(values, 1e6), values, torch.zeros(1, 3).long())


def _nan_weighs_nothing(case: Case) -> Call:
    """But it is read."""
    keys, values = (torch.tensor(x).view(1, 3, 1, 1) for x in ([0.0, -300.0, 0.0], [4.0, torch.nan, 7.0]))
    return call(torch.ones(1, 2, 1, 1), keys, values, torch.tensor([[0, 2]]))


def _infinitely_low(case: Case, value: float) -> Call:
    """A key that is read and has no weight by itself; and its value, be it NaN, is read all the same."""
    keys, values = (torch.tensor(x).view(1, 3, 1, 1) for x in ([-torch.inf, 0.5, 0.0], [value, 4.0, 7.0]))
    return call(torch.ones(1, 2, 1, 1), keys, values, torch.tensor([[1, 2]]))


def _both_ends(case: Case) -> Call:
    """Of infinity and minus infinity nothing is left that is a number; only who reads one of them has it."""
    values = torch.tensor([torch.inf, -torch.inf, 7.0]).view(1, 3, 1, 1)
    return call(torch.zeros(1, 3, 1, 1), torch.zeros(1, 3, 1, 1), values, torch.tensor([[2, 0, 1]]))


def _scaled(case: Case, scale: float) -> Call:
    """Scores that are as ever, of queries or keys that are tiny, or 0, and values that are large."""
    keys, values, q = (case.floats(name, 2, 4, 2, 3) for name in ("keys", "values", "q"))
    at = torch.tensor([[3, 0, 2, -1], [1, 2, 3, 0]])
    return call(q * scale, keys / scale if scale else keys, values * (1 if scale else 1e30), at)


def _nobody(case: Case) -> Call:
    keys, values = _cache(case, 2, 3)
    return call(case.floats("q", 2, 2, *keys.shape[2:]), keys, values, torch.full((2, 2), -1))


def _all_tie(case: Case) -> Call:
    """Scores that are equal, and so large that no float knows the logarithm of a sum beside them."""
    level = torch.tensor([1e17, -1e17])[case.permutation("which", 2)].view(2, 1, 1, 1)
    values = case.floats("values", 2, 4, 1, 1) + 2
    return call(torch.ones(2, 2, 1, 1), level.repeat(1, 4, 1, 1), values, torch.tensor([[3, 1], [2, -1]]))


def _apart(case: Case) -> Call:
    """By 2^22 and more, above 0 and below it: the highest alone counts."""
    keys = (case.permutation("order", 5).view(1, 5, 1, 1) - 2) * 2.0**22
    q = torch.tensor([1.0, -1.0]).view(1, 2, 1, 1)
    return call(q, keys, torch.arange(5.0).view(keys.shape), torch.tensor([[4, 3]]))


OF_THEIR_OWN = {
    "little weight": _little_weight, "below all": _below_all, "NaN weighs nothing": _nan_weighs_nothing,
    "apart": _apart, "infinitely low": partial(_infinitely_low, value=3.0), "both ends": _both_ends, "nobody": _nobody,
    "NaN beside that": partial(_infinitely_low, value=torch.nan), "tiny queries": partial(_scaled, scale=1e-20),
    "tiny keys": partial(_scaled, scale=1e20), "zero queries": partial(_scaled, scale=0.0), "all tie": _all_tie,
}  # fmt: skip


def _sized(case: Case, kind: str) -> Call:
    """A few of everything, or many of one; or one number that is none, in a slot that some read, or in a query."""
    B, T, slots, heads, size = case.small("rows queries slots heads size")
    if kind != "few":
        B, T, slots, heads, size = (max(n, 2) for n in SIZES.get(kind, (2, 2, 3, 2, 2)))
    keys, values = (case.floats(name, B, slots, heads, size) for name in ("keys", "values"))
    q, positions = case.floats("q", B, T, heads, size), case.ints("positions", -1, slots - 1, B, T)
    positions[0, 0] = slots - 1
    if B > 1 and case.turn((False, True)):
        positions[case.choice("nobody", (0, -1))] = -1
    if kind == "few":  # what nobody of a row reads
        unread = torch.arange(slots) > positions.amax(1)[:, None]
        keys[unread], values[..., 0][unread] = torch.nan, torch.inf
    if kind in ONE:
        positions[:, 0], positions[:, 1], values[1, 1, 1, 0] = 1, 0, ONE[kind]
        positions[0] = -1
    if kind == "NaN asks":
        positions[:], q[1, 0, 1, 1] = 1, torch.nan
    return call(q, keys, values, positions)


def any_step(case: Case) -> Call:
    """Padding on both sides of a row, positions in any order, high and low scores, and anything where nobody reads."""
    S, kind = 7, case.turn((
        "both sides", "NaN is read", "high", "low", "below all", "huge", "infinite", "NaN weighs nothing", "no order",
        "middle", *KINDS, *list(OF_THEIR_OWN)[3:], *SIZES, "NaN asks", *ONE, "little weight", *["few"] * 9,
    ))  # fmt: skip
    if kind in OF_THEIR_OWN:
        return OF_THEIR_OWN[kind](case)
    if kind in SIZES or kind in ONE or kind in ("few", "NaN asks"):
        return _sized(case, kind)
    if kind in KINDS:
        return _counted(case, kind)
    positions = torch.tensor([[-1, 2, -1], [0, 1, S - 1], [-1, -1, -1]])
    if kind == "middle":
        positions = torch.tensor([[0, 2, 1, 3]] * 3)
    if kind == "no order":
        positions = torch.stack([case.permutation(f"order {row}", S - 1)[:3] for row in range(3)])
    keys, values = _cache(case, 3, S)
    q = case.floats("q", 3, positions.shape[1], *keys.shape[2:])
    if kind in ("high", "low", "huge"):
        q, keys = (q.abs() + 1) * 200, (keys.abs() + 1) * (-1 if kind == "low" else 1)
    unread = torch.arange(S) > positions.amax(1)[:, None]  # (B, S)
    poison = {"huge": (1e30, 3e38), "infinite": (torch.inf, -torch.inf)}.get(kind, (torch.nan, torch.nan))
    keys[unread], values[unread] = poison
    q[positions < 0] = poison[0]
    if kind == "NaN is read":  # and infinity, by another row
        keys[1, 0, 0, 0], values[0, 0, :, 0] = torch.nan, torch.inf
        q[1, 1, 0, 0] = torch.nan
    return call(q, keys, values, positions)


CHECKS = (
    Check(any_step, 41, wide=True), Check(old_text, 3), Check(values_never_set, 3), Check(keys_never_set),
    Check(row_of_nobody), Check(chunk, 3), Check(chunk_with_nan),
)  # fmt: skip
