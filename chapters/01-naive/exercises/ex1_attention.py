"""Exercise 1.1: attention of queries and keys whose positions are given, and not the same as their row numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.cases import Call, Case, call
from nanocourse.exercises.exercise import Check, Function, Spec
from nanocourse.exercises.swap import replaced


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


@contextmanager
def swap(mine: Function) -> Iterator[None]:
    """FullContext.attend pads for it. Every row's whole context is there, so a column's number is its position."""

    def attend(self: Any, plan: Any, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch = plan.batch
        if not batch.rows:  # a piece of a prompt after which no token is wanted yet
            return v
        positions = torch.arange(batch.max_new, device=q.device).expand(batch.rows, -1)
        result: Tensor = batch.packed(mine(*map(batch.padded, (q, k, v)), positions))
        return result

    with replaced("nanoinfer.cache.naive:FullContext.attend", attend):
        yield


def _example() -> Call:
    q = torch.tensor([[[[1.0]], [[1.0]], [[1.0]]]])
    v = torch.tensor([[[[4.0]], [[8.0]], [[6.0]]]])
    return call(q, torch.zeros(1, 3, 1, 1), v, torch.tensor([[1, 2, 0]]))


EXERCISE = Spec(
    title="Attention with given positions",
    reference=attention,
    task=(
        "Write causal attention for B rows of T tokens, in H heads of size D. Column i of a row is *not* always "
        "token i\n"
        "of its text: where a token stands is told by `positions`, and that alone decides who may read whom."
    ),
    invariants=(
        "a query reads its own position, and none that is higher",
        "weights over the keys that a query reads sum to 1",
        "heads do not mix, and neither do rows",
        "putting a row's columns into another order, positions included, puts its results into that order and changes"
        " nothing else",
    ),
    lines=5,
    example=_example,
    pure=True,
    section="Who may read whom",
    axes=("row", "column", "head", "channel"),
    tolerance=1e-4,
    refuse=("nanoinfer.cache.naive:FullContext.attend", "nanoinfer.cache.dense:DenseCache.attend"),
    swap=swap,
    hints=(
        "Invariant: shuffle the columns of a row together with their positions, and every token must still get the "
        "same\n"
        "result. A triangle of row numbers breaks this at once.",
        "Place: what is hidden is decided between the scores and the softmax, in a table of the shape (B, 1, T, T), "
        "true\n"
        "where the key of a column stands after the query of a line. Compare `positions` with itself, once laid out "
        "along\n"
        "the last dimension and once along the one before it.",
        "Pseudocode:\n"
        "  heads to the front, so that each head is a batch of matrices\n"
        "  table of scores = every query with every key, over the square root of the size of one head\n"
        "  cross out the cells where the key's place in the text is beyond the query's\n"
        "  make each line of the table sum to one\n"
        "  mix the values by it, and put the heads back where they were",
    ),
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
    positions = case.permutation("order", 300)[None]
    k, v = torch.zeros(1, 300, 1, 1), case.ints("v", -9, 9, 1, 300, 1, 1)
    k[positions == 0], k[positions == 257] = 1.0, 2.0
    return call(torch.full_like(k, 100).to(kind), k.to(kind), v.to(kind), positions)


def any_step(case: Case) -> Call:
    """Positions may be any: in order in one row, at its ends, or nowhere, one, many, on both sides of 2^15 or 2^31."""
    T = case.size("tokens", 3, 5)
    kind = case.turn((torch.bfloat16, torch.float16, torch.float64, *[None] * 14))
    if kind is not None:
        return _counted(case, kind)
    if case.turn((False,) * 16 + (True,)):  # a key that is hidden, and that a finite stand-in would not hide
        q = torch.tensor([-1e16, 0.0]).view(1, 2, 1, 1)
        return call(q, torch.full_like(q, 1e16), case.floats("v", 1, 2, 1, 1), torch.tensor([[0, 1]]))
    shuffled = torch.stack([case.permutation(f"order {row}", T) for row in range(2)])
    kinds = (
        torch.cat([torch.arange(T)[None], shuffled]),
        torch.cat([shuffled, torch.arange(T)[None]]),
        2**53 + shuffled,
        2**31 - 2 + shuffled,
        2**15 - 2 + shuffled,
        2**24 - 2 + shuffled,
        case.ints("alone", 0, 9, 1, 1),
        case.permutation("many", 70)[None],
        torch.cat([torch.tensor([0]), 1 + case.permutation("middle", 4), torch.tensor([5])]).expand(2, 6).clone(),
        torch.stack([case.permutation(f"many rows {row}", 3) for row in range(70)]),
        2048 + shuffled[:1],
        2048 + shuffled,
        shuffled,
    )
    at = case.turn((0, 0, 0, *range(len(kinds)), 0))
    heads, size = {10: (70, 1), 11: (1, 70)}.get(at, (1, 2))
    asked = _inputs(case, kinds[at], heads, size)
    if at == len(kinds) - 1:  # what the first token of each row holds is read by all, and comes out
        asked.args[2][kinds[at] == 0] = torch.nan
    return asked


CHECKS = (
    Check(in_order), Check(columns_shuffled), Check(later_positions), Check(large_scores, 4),
    Check(any_step, 17, wide=True),
)  # fmt: skip
