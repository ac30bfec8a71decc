"""Exercise 2.2: a step's keys and values go into the cache, each to its slot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.cases import Call, Case, call
from nanocourse.exercises.exercise import Check, Function, Spec
from nanocourse.exercises.swap import replaced
from nanoinfer.cache.dense import DenseCache


def write(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, last: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Put a step's keys and values of one layer into the cache; returns it without the dummy row, keys and values.

    keys, values (L, R + 1, S, H, D): R rows of S slots in each layer, and behind them a dummy row for padding.
    k, v (B, T, H, D): of this step's tokens. positions (B, T) int64: where each stands in its own text, below S.
    last (B,) int64: the column of each row's last real token; columns behind it are padding, and with -1 all are.
    rows (B,) int64: which row of the cache each row of the step is; padding rows (last -1) name any.
    """
    T = k.shape[1]
    real = torch.arange(T, device=k.device) <= last[:, None]  # (B, T)
    places = torch.where(real, rows[:, None], keys.shape[1] - 1)  # (B, T) rows of the cache
    keys[layer, places, positions] = k
    values[layer, places, positions] = v
    return keys[:, :-1], values[:, :-1]


@contextmanager
def swap(mine: Function) -> Iterator[None]:
    """DenseCache.write; a solution that does not write in place has its result copied."""
    begin = DenseCache.begin

    def begin_and_keep(self: Any, step: Any) -> Any:
        self.own_step = step
        return begin(self, step)

    def write(self: Any, layer: int, k: Tensor, v: Tensor) -> None:
        step = self.own_step
        written = mine(self.k, self.v, layer, k, v, step.positions, step.last, self.row[step.rows])
        for held, new in zip((self.k, self.v), written, strict=True):
            if new.data_ptr() != held.data_ptr():
                held[:, :-1] = new

    with (
        replaced("nanoinfer.cache.dense:DenseCache.begin", begin_and_keep),
        replaced("nanoinfer.cache.dense:DenseCache.write", write),
    ):
        yield


def _example() -> Call:
    keys = torch.zeros(1, 2, 3, 1, 1)
    k = torch.tensor([[[[5.0]], [[6.0]]]])
    return call(keys, keys.clone(), 0, k, k + 0.5, torch.tensor([[1, 2]]), torch.tensor([0]), torch.tensor([0]))


EXERCISE = Spec(
    title="Write by position",
    reference=write,
    task=(
        "Write a step's keys and values into the cache. A token's slot is its position, in its own row of the cache\n"
        "and in the layer that is being computed. Padded columns must not touch anybody's slots; the dummy row takes\n"
        "anything, so that every column can be written and nothing has to be left out. The engine does it in place."
    ),
    invariants=(
        "a slot changes only if a real token of this step stands at its position, in its row and layer",
        "row i of the step need not be row i of the cache",
        "the order of columns makes no difference: what counts is the position",
    ),
    lines=6,
    example=_example,
    section="A slot is a position",
    axes=("of keys, values: number", "layer", "row", "slot", "head", "channel"),
    tolerance=1e-6,
    refuse=("nanoinfer.cache.dense:DenseCache.write", "nanoinfer.cache.dense:DenseCache.attend"),
    swap=swap,
    hints=(
        "Invariant: write the position itself into every key. Afterwards slot 7 of a row may hold a 7 or what it held\n"
        "before, and nothing else.",
        "Place: one assignment a tensor is enough. On its left side stand the layer and two tables of the shape\n"
        "(B, T): which row of the cache, and which slot of it. The second is there already. The first is `rows`,\n"
        "repeated over the columns, but for padded columns, which go to the last row of all.",
        "Pseudocode:\n"
        "  which columns are real: count the columns, compare with the last real one of each row\n"
        "  for real columns the row that the step names, for the others the dummy row\n"
        "  assign the new keys to the cache's keys there, and the values likewise\n"
        "  hand back everything but the dummy row",
    ),
)


def _cache(case: Case, layers: int, rows: int, slots: int, heads: int, size: int) -> tuple[Tensor, Tensor]:
    """A cache with an old text in it: rows and a dummy row."""
    shape = (layers, rows + 1, slots, heads, size)
    return case.floats("old keys", *shape) + 10, case.floats("old values", *shape) - 10


def _new(case: Case, B: int, T: int, heads: int, size: int) -> tuple[Tensor, Tensor]:
    return case.floats("k", B, T, heads, size), case.floats("v", B, T, heads, size) + 5


def prompts(case: Case) -> Call:
    """A prompt's keys and values go to the layer and the row that are named, and nowhere else."""
    layers, B, T = case.size("layers", 2, 3), case.size("rows", 1, 2), case.size("tokens", 1, 3)
    rows = torch.tensor(case.sample("which rows", range(1, 3), B))
    heads, size = case.size("heads", 1, 2), case.size("head size", 1, 2)
    positions = torch.arange(T).expand(B, T).clone()
    layer = case.size("layer", 1, layers - 1)
    last = torch.full((B,), T - 1)
    return call(
        *_cache(case, layers, 3, T + 1, heads, size), layer, *_new(case, B, T, heads, size), positions, last, rows
    )


def decode(case: Case) -> Call:
    """One token a row, each at its own position, far from slot 0; with several columns, each at its own."""
    B, T = case.size("rows", 2, 3), case.size("tokens", 1, 2)
    starts = torch.tensor(case.sample("starts", range(1, 5), B))
    positions = starts[:, None] + torch.arange(T)
    cache, new = _cache(case, 1, B, 6, 1, 1), _new(case, B, T, 1, 1)
    return call(*cache, 0, *new, positions, torch.full((B,), T - 1), torch.arange(B))


def padding(case: Case) -> Call:
    """Padded columns are written into the dummy row, wherever their positions point, and so are padding rows."""
    T = case.size("tokens", 3, 5)
    longest = case.choice("longest", (T - 2, T - 1))
    last = torch.tensor([*case.ints("last", 0, T - 2, 2).tolist(), -1, longest])[case.permutation("order", 4)]
    positions = torch.arange(T).expand(4, T).clone()
    if case.choice("padded positions", (True, False)):
        positions[torch.arange(T) > last[:, None]] = 0
    return call(*_cache(case, 1, 4, T, 1, 1), 0, *_new(case, 4, T, 1, 1), positions, last, torch.arange(4))


CHECKS = (Check(prompts, 3), Check(decode, 3), Check(padding, 4))
