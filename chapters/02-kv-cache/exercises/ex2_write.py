"""Exercise 2.2: a step's keys and values go into the cache, each to its slot."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from nanocourse.exercises import MANY, Call, Case, Check, Function, Places, Spec, call
from nanoinfer.cache.captured import CapturedDense


def write(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """Put a step's keys and values of one layer into the cache; returns it without the dummy row, keys and values.

    keys, values (L, R + 1, S, H, D), contiguous: R rows of S slots in each layer, then a dummy row for padding.
    k, v (N, H, D): of this step's tokens, each row's side by side. positions (N,) int64: where each stands in its own
    text, 0 to S - 1. rows (N,) int64: which row of the cache each belongs to, 0 to R - 1.
    real (N,) bool: False for padding, which may name any of these rows and positions, and stand anywhere in the step:
    here you send it to the dummy row. Writing in place and writing into a copy both pass.
    """
    places = torch.where(real, rows, keys.shape[1] - 1)  # (N,) rows of the cache
    keys[layer, places, positions] = k
    values[layer, places, positions] = v
    return keys[:, :-1], values[:, :-1]


def swap(mine: Function) -> Places:
    """DenseCache.write, for steps that are padded to a rectangle; a result that is a copy is copied back."""
    with_dummy: WeakSet[Any] = WeakSet()

    def write(self: Any, plan: Any, layer: int, k: Tensor, v: Tensor) -> None:
        batch = plan.batch
        if self not in with_dummy and not isinstance(self, CapturedDense):
            with_dummy.add(self)
            self.k, self.v = (torch.cat([held, held[:, :1]], 1) for held in (self.k, self.v))
        parts = k, v, batch.positions, batch.row, torch.ones_like(batch.row)
        k, v, positions, slots, ones = (batch.padded(part).flatten(0, 1) for part in parts)
        dummy = self.k.shape[1] - 1
        written = mine(self.k, self.v, layer, k, v, positions, slots % dummy, (ones > 0) & (slots < dummy))
        for held, new in zip((self.k, self.v), written, strict=True):
            if new.data_ptr() != held.data_ptr():
                held[:, :-1] = new

    return {"nanoinfer.cache.dense:DenseCache.write": write}


def _example() -> Call:
    keys = torch.zeros(1, 2, 3, 1, 1)
    k = torch.tensor([[[5.0]], [[6.0]]])
    return call(
        keys, keys.clone(), 0, k, k + 0.5, torch.tensor([1, 2]), torch.tensor([0, 0]), torch.tensor([True, False])
    )


EXERCISE = Spec(
    reference=write,
    lines=4,
    example=_example,
    pure=False,  # the pool may be written to
    section="A slot is a position",
    axes=("of keys, values: number", "layer", "row", "slot", "head", "channel"),
    tolerance=1e-12,  # numbers are moved, and not computed with
    contiguous=("keys", "values"),
    refuse=("nanoinfer.cache.dense:DenseCache.write", "nanoinfer.cache.dense:DenseCache.attend"),
    swap=swap,
)


def _cache(case: Case, layers: int, rows: int, slots: int, heads: int, size: int) -> tuple[Tensor, Tensor]:
    """A cache with an old text in it: rows and a dummy row."""
    shape = (layers, rows + 1, slots, heads, size)
    return case.floats("old keys", *shape) + 10, case.floats("old values", *shape) - 10


def _new(case: Case, N: int, heads: int, size: int) -> tuple[Tensor, Tensor]:
    return case.floats("k", N, heads, size), case.floats("v", N, heads, size) + 5


def prompts(case: Case) -> Call:
    """A prompt's keys and values go to the layer and the row that are named, and nowhere else."""
    layers, B = case.size("layers", 2, 3), case.size("rows", 1, 2)
    lengths = torch.tensor([case.size(f"length of row {b}", 1, 3) for b in range(B)])
    rows = torch.tensor(case.sample("which rows", range(1, 3), B)).repeat_interleave(lengths)
    positions = torch.cat([torch.arange(T) for T in lengths.tolist()])
    heads, size = case.size("heads", 1, 2), case.size("head size", 1, 2)
    cache, new = _cache(case, layers, 3, 4, heads, size), _new(case, len(rows), heads, size)
    return call(*cache, case.size("layer", 1, layers - 1), *new, positions, rows, rows >= 0)


def decode(case: Case) -> Call:
    """Tokens that go on far from slot 0, one a row or several, go to their own positions."""
    B, T = case.size("rows", 2, 3), case.size("tokens", 1, 2)
    starts = torch.tensor(case.sample("starts", range(1, 5), B))
    positions = (starts[:, None] + torch.arange(T)).flatten()
    rows = torch.arange(B).repeat_interleave(T)
    return call(*_cache(case, 1, B, 6, 1, 1), 0, *_new(case, B * T, 1, 1), positions, rows, rows >= 0)


def padding(case: Case) -> Call:
    """Padding is written into the dummy row, whatever row and position it names, between the rows and behind them."""
    T, longest = case.size("columns", 3, 4), case.choice("longest", (1, 2))
    ends = torch.tensor([*case.ints("ends", 1, T - 1, 2).tolist(), 0, T - longest])[case.permutation("order", 4)]
    positions = torch.arange(T).repeat(4)
    rows = torch.arange(4).repeat_interleave(T)
    real = positions < ends[rows]
    if case.choice("padded positions", (True, False)):
        positions[~real] = 0
    return call(*_cache(case, 1, 5, T, 1, 1), 0, *_new(case, 4 * T, 1, 1), positions, rows, real)


KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _few(case: Case) -> Call:
    """One, two or three of everything: rows in any order, each with some of its slots, each token real or not."""
    layers, R, S, heads, size = case.small("layers rows slots heads size")
    rows = case.permutation("order", R).repeat_interleave(S)
    positions = torch.cat([case.permutation(f"row {row}", S) for row in range(R)])
    some = case.ints("some", 0, 2, R * S) > 0
    some[0] = True
    new = _new(case, int(some.sum()), heads, size)
    real = case.ints("real", 0, 2, len(new[0])) > 0
    return call(*_cache(case, layers, R, S, heads, size), int(case.ints("layer", 0, layers - 1, 1)), *new,
                positions[some], rows[some], real)  # fmt: skip


def any_step(case: Case) -> Call:
    """Tokens come in any order and number, many rows and slots, NaN in padding, and steps of nothing but padding."""
    kind = case.turn(("no order", "dirty padding", "nothing real", "many slots", "many rows",
                      *KINDS, "many heads", "many layers", "wide", "many tokens", "zeros", *["few"] * 9))  # fmt: skip
    if kind == "few":
        return _few(case)
    R, S = {"many slots": (2, 2**15 + 9), "many rows": (MANY, 3), "many tokens": (2, MANY)}.get(kind, (3, 6))
    rows = torch.tensor([R - 1] * 3 + [0] * 2) if kind != "many rows" else case.permutation("rows", R)
    positions = torch.cat([case.permutation("first", S)[:3], case.permutation("second", S)[:2]])
    positions = positions if kind != "many rows" else case.ints("positions", 0, S - 1, R)
    if kind == "many tokens":
        rows, positions = torch.ones(MANY).long(), case.permutation("all", MANY)
    if kind == "many slots":
        positions[:2] = torch.tensor([2**15 + 8, 2**15 - 1])
    real = torch.ones(len(rows), dtype=torch.bool)
    if kind in ("dirty padding", "nothing real"):
        real[[1, 3] if kind == "dirty padding" else slice(None)] = False
    heads, size, layers = {"many heads": (MANY, 1, 1), "wide": (1, MANY, 1), "many layers": (1, 1, MANY)}.get(
        kind, (1, 1, 1)
    )
    k, v = _new(case, len(rows), heads, size)
    if kind == "dirty padding":
        positions[1] = positions[0]  # padding may name any slot, also one that is being written
    k[~real] = torch.tensor([torch.nan, torch.inf] * len(rows))[: int((~real).sum()), None, None]
    v[~real] = torch.nan
    keys, values = _cache(case, layers, R, S, heads, size)
    if kind == "zeros":  # of a token, and both of another that are equal
        k[0], v[0], k[1], v[2], keys[:, 0], values[:, 2] = 0, 0, v[1], 0, 0, torch.nan
    if kind == "no order":  # memory that was never set
        keys[:], values[:, :, ::2] = torch.nan, torch.inf
    if kind in KINDS:  # other types, and a real token whose numbers have overflown
        k[0], k[1], v[0], v[1] = torch.inf, torch.nan, torch.nan, -torch.inf
        keys, values, k, v = (x.to(kind) for x in (keys, values, k, v))
        real[4] = False
        k[2], v[2] = torch.finfo(kind).max, torch.finfo(kind).min
        if kind == torch.float64:
            k[3:] /= 3  # more places than 32 bits have
    return call(keys, values, layers - 1, k, v, positions, rows, real)


CHECKS = (Check(prompts, 3), Check(decode, 3), Check(padding, 4), Check(any_step, 23, wide=True))
