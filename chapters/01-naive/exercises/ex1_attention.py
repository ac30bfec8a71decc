"""Exercise 1.1: attention of queries and keys whose positions are given, and not the same as their row numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import FAR, Call, Case, Check, Function, Places, Spec, call, large_in_turn


def attention(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """Causal attention: q, k, v (B, T, H, D) -> (B, T, H, D), of any floating type.

    positions (B, T) int64: where each column's token stands in its own text, no two of a row at the same place. A query
    reads the keys of its own row whose position is at most its own. Vaswani et al. 2017, section 3.2.1.
    """
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, D)
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5  # (B, H, query, key)
    later = positions[:, None, None, :] > positions[:, None, :, None]  # (B, 1, query, key)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    return (weights @ v).transpose(1, 2)


def swap(mine: Function) -> Places:
    """NoCache.attend pads for it. Every row's whole context is there, so a column's number is its position."""

    def attend(self: Any, plan: Any, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        positions = torch.arange(plan.longest, device=q.device).expand(plan.rows, -1)
        result = mine(*map(plan.padded, (q, k, v)), positions).to(q.dtype)  # it may compute in a wider type
        return plan.packed(result)

    return {"nanoinfer.cache.none:NoCache.attend": attend}


def _example() -> Call:
    q = torch.tensor([[[[1.0]], [[1.0]], [[1.0]]]])
    v = torch.tensor([[[[4.0]], [[8.0]], [[6.0]]]])
    return call(q, torch.zeros(1, 3, 1, 1), v, torch.tensor([[1, 2, 0]]))


EXERCISE = Spec(
    reference=attention,
    lines=5,
    example=_example,
    section="Who may read whom",
    axes=("row", "column", "head", "channel"),
    refuse=("nanoinfer.cache.none:NoCache.attend", "nanoinfer.cache.dense:DenseCache.attend"),
    swap=swap,
)


def _inputs(case: Case, positions: Tensor, heads: int, size: int, scale: float = 1.0) -> Call:
    B, T = positions.shape
    q, k, v = (case.floats(name, B, T, heads, size) for name in "qkv")
    return call(q * scale, k * scale, v, positions)


def in_order(case: Case) -> Call:
    """With columns in the order of the text, each query reads itself and what stands before it, head by head."""
    B, T = case.size("rows", 1, 2), case.size("tokens", 2, 6)
    return _inputs(case, torch.arange(T).expand(B, T).clone(), case.size("heads", 1, 4), case.size("head size", 1, 5))


def columns_shuffled(case: Case) -> Call:
    """Columns may stand in any order: the positions decide what is hidden, each row's own."""
    B, T = case.size("rows", 1, 3), case.size("tokens", 2, 5)
    return _inputs(case, torch.stack([case.permutation(f"order {row}", T) for row in range(B)]), 1, 2)


def later_positions(case: Case) -> Call:
    """Positions need not begin at 0 and may have gaps: they are compared, not used as row numbers."""
    T = case.size("tokens", 2, 5)
    return _inputs(case, (case.ints("gaps", 1, 3, 1, T).cumsum(1) + case.ints("first", 0, 9, 1, 1)), 1, 1)


def large_scores(case: Case) -> Call:
    """A hidden key has no weight at all, however low the scores of the others are, and large scores do not overflow."""
    T = case.size("tokens", 2, 4)
    side = case.choice("sign", (-1.0, 1.0))
    q = case.floats("q", 1, T, 1, 1).abs() + 1
    k = (case.floats("k", 1, T, 1, 1).abs() + 1) * side
    v = case.floats("v", 1, T, 1, 1)
    return call(q * 300, k * 300, v, torch.arange(T)[None])


def _counted(case: Case, kind: torch.dtype) -> Call:
    """300 tokens in a type that does not count them: a query reads the one key that is far above those it may read."""
    positions = torch.stack([case.permutation(f"order {row}", 300) for row in range(2)])
    k, v = torch.zeros(2, 300, 2, 4), case.ints("v", -9, 9, 2, 300, 2, 4)
    k[positions == 0], k[positions == 257] = 1.0, 2.0
    return call(torch.full_like(k, 100).to(kind), k.to(kind), v.to(kind), positions)


def _hidden(case: Case) -> Call:
    """A key is hidden that a finite stand-in would not hide."""
    q = torch.tensor([-1e16, 0.0]).view(1, 2, 1, 1)
    return call(q, torch.full_like(q, 1e16), case.floats("v", 1, 2, 1, 1), torch.tensor([[0, 1]]))


def _little_weight(case: Case) -> Call:
    """A weight of e^-60 counts where its value is large."""
    k, v = (torch.tensor(x).view(1, 3, 1, 1) for x in ([0.0, -60.0, 0.0], [1.0, 1e28, 2.0]))
    return call(torch.ones(1, 3, 1, 1), k, v, torch.arange(3)[None])


def _all_tie(case: Case) -> Call:
    """Scores that are equal, and so large that no float knows the logarithm of a sum beside them."""
    level = torch.tensor([1e17, -1e17])[case.permutation("which", 2)].view(2, 1, 1, 1)
    return call(
        torch.ones(2, 4, 1, 1), level.repeat(1, 4, 1, 1), case.floats("v", 2, 4, 1, 1) + 2, torch.arange(4).repeat(2, 1)
    )


def _read_by_all(case: Case) -> Call:
    """NaN in what the first token of each row holds is read by all, and comes out: in one channel of two."""
    asked = _inputs(case, torch.stack([case.permutation(f"order {row}", 4) for row in range(2)]), 1, 2)
    asked.args[2][asked.args[3] == 0, 0, 1] = torch.nan
    return asked


def _beyond_float32(case: Case) -> Call:
    """Values that no float32 holds."""
    asked = _inputs(case, torch.arange(3)[None], 1, 2)
    q, k, v, positions = (x.double() if x.is_floating_point() else x for x in asked.args)
    return call(q, k, v * 1e200, positions)


def _small(case: Case) -> Call:
    B, T, heads, size = case.small("rows tokens heads size")
    positions = torch.stack([case.permutation(f"order {row}", T) + row for row in range(B)])
    return _inputs(case, positions, heads, size)


def _scaled(case: Case, scale: float) -> Call:
    """Scores that are as ever, of queries or keys that are tiny, or 0, and values that are large."""
    asked = _inputs(case, torch.arange(4).flip(0).repeat(2, 1), 2, 3)
    q, k, v, positions = asked.args
    return call(q * scale, k / scale if scale else k, v * (1 if scale else 1e30), positions)


def _large(sizes: list[int], case: Case) -> Call:
    B, T, heads, size = sizes
    T = max(T, 1 + (B > 1 or heads > 1 or size > 1))  # a text, if it is not all there is that is one token
    B = max(B, 1 + (T > 2))
    return _inputs(case, torch.stack([case.permutation(f"order {row}", T) for row in range(B)]), heads, size)


def _at(first: int, rows: int, case: Case) -> Call:
    return _inputs(case, first + torch.stack([case.permutation(f"order {row}", 4) for row in range(rows)]), 1, 2)


def _far(case: Case) -> Call:
    far = torch.tensor([case.sample(f"row {row}", FAR, len(FAR)) for row in range(2)])
    return _inputs(case, far + torch.tensor([[0], [3]]), 1, 2)


def _in_order_in_one(at: int, case: Case) -> Call:
    shuffled = torch.stack([case.permutation(f"order {row}", 4) for row in range(3)])
    shuffled[1], shuffled[at] = shuffled[2 * (at == 0)], torch.arange(4)  # the two others are equal
    return _inputs(case, shuffled, 1, 2)


def _in_order_at_the_ends(case: Case) -> Call:
    middle = 1 + torch.stack([case.permutation(f"middle {row}", 4) for row in range(2)])
    return _inputs(case, torch.cat([torch.zeros(2, 1).long(), middle, torch.full((2, 1), 5)], 1), 1, 2)


STEPS = (
    *(partial(_counted, kind=kind) for kind in (torch.bfloat16, torch.float16, torch.float64)),
    *(partial(_large, sizes) for sizes in large_in_turn(4)), partial(_large, [1] * 4),
    *(partial(_at, first, 2) for first in (2**53, 2**31 - 2, 2**15 - 2, 2**24 - 2, 2046)), partial(_at, 2046, 1),
    *(partial(_in_order_in_one, at) for at in (0, -1)), _in_order_at_the_ends,
    _hidden, _little_weight, _all_tie, _read_by_all, _beyond_float32, _far, *[_small] * 9,
    *(partial(_scaled, scale=scale) for scale in (1e-20, 1e20, 0.0)),
)  # fmt: skip


def any_step(case: Case) -> Call:
    """Positions may be any, far apart too, and sizes: one, many, and rows in order beside others that are not."""
    return case.turn(STEPS)(case)


CHECKS = (
    Check(in_order), Check(columns_shuffled), Check(later_positions), Check(large_scores, 4),
    Check(any_step, len(STEPS), wide=True),
)  # fmt: skip
