"""Exercise 2.2: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition


def token_by_token(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """A loop; padding is left out, and the dummy row is never touched."""
    for n, (row, slot) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        if real[n]:
            keys[layer, row, slot] = k[n]
            values[layer, row, slot] = v[n]
    return keys[:, :-1], values[:, :-1]


def new_tensors(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """Not in place, in float64, the real ones picked by a boolean mask."""
    keys, values = keys.double()[:, :-1].clone(), values.double()[:, :-1].clone()
    at = torch.full_like(rows[real], layer), rows[real], positions[real]
    return keys.index_put(at, k[real].double()), values.index_put(at, v[real].double())


EQUIVALENT: dict[str, str] = {}


def _there(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor | int, ...]:
    turned = (held.roll(1, 1).permute(1, 0, 3, 2, 4).clone() for held in (keys, values))
    return *turned, layer, k, v, positions, rows, real


def _back(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor | int, ...]:
    turned = (held.permute(1, 0, 3, 2, 4).roll(-1, 1).clone() for held in (keys, values))
    return *turned, layer, k, v, positions, rows, real


@edition(
    "row-first",
    "the dummy row is the first, and heads stand before slots",
    args=_there,
    back=_back,
    result=lambda written, *args: tuple(held.permute(1, 0, 3, 2, 4) for held in written),
    axes=("of keys, values: number", "row", "layer", "head", "slot", "channel"),
)
def write(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """Put a step's keys and values of one layer into the cache; returns it without the dummy row, keys and values.

    keys, values (R + 1, L, H, S, D): first a dummy row for padding, then R rows; in each layer and head S slots.
    k, v (N, H, D): of this step's tokens, each row's side by side. positions (N,) int64: where each stands in its own
    text, below S. rows (N,) int64: which row of the cache, the dummy row not counted, each belongs to.
    real (N,) bool: False for padding, which may name any row and any position, and may stand anywhere in the step.
    """
    places = torch.where(real, rows + 1, 0)
    keys[places, layer, :, positions] = k
    values[places, layer, :, positions] = v
    return keys[1:], values[1:]
