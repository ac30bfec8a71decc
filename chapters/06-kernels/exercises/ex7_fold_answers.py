"""Exercise 6.7: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition


def as_written(x: Tensor, products: Tensor, gains: Tensor, shifts: Tensor, eps: float) -> Tensor:
    """By torch's own variance, and one multiplication by the inverse."""
    variance, mean = torch.var_mean(x, correction=0)
    scale = torch.rsqrt(variance + eps)
    total = torch.einsum("pr->r", products)
    return scale * total - scale * mean * gains + shifts


def in_double(x: Tensor, products: Tensor, gains: Tensor, shifts: Tensor, eps: float) -> Tensor:
    """In float64, row by row."""
    numbers = x.double()
    mean = float(numbers.sum()) / len(numbers)
    deviation = (sum((number - mean) ** 2 for number in numbers.tolist()) / len(numbers) + eps) ** 0.5
    rows = []
    for at in range(gains.shape[0]):
        whole = sum(products[:, at].double().tolist())
        rows.append((whole - mean * gains[at].item()) / deviation + shifts[at].item())
    return torch.tensor(rows, dtype=torch.float32)


EQUIVALENT: dict[str, str] = {}


def _named(x: Tensor, products: Tensor, gains: Tensor, shifts: Tensor, eps: float) -> tuple[object, ...]:
    return x[None], eps, {"shifts": shifts, "products": products.T.contiguous(), "gains": gains}


def _plain(stream: Tensor, eps: float, rows: dict[str, Tensor]) -> tuple[object, ...]:
    return stream[0], rows["products"].T, rows["gains"], rows["shifts"], eps


@edition(
    "finish",
    "rows come by name, with pieces as columns, and the result has a line of its own",
    args=_named,
    back=_plain,
    result=lambda result, *plain: result[None],
    axes=("line", "row"),
)
def finish(stream: Tensor, eps: float, rows: dict[str, Tensor]) -> Tensor:
    """Rows of a linear layer behind a LayerNorm, from products that were begun before its mean was known: (1, R).

    stream: (1, C) float32, the input of the LayerNorm; C is at least 1. Its output is y = (stream - mean) / deviation *
    gain + shift, with the deviation the square root of the mean squared distance from the mean, plus eps under the
    root. Wanted is weight @ y + bias for R rows, at least one.
    rows: under "products" (R, P) float32, what P programs or pieces, at least one, have each added up of weight @ (gain
    * stream), mean and deviation not yet known: a row's sum over the pieces is the whole. Under "gains" (R,) float32,
    weight @ gain. Under "shifts" (R,) float32, weight @ shift + bias. eps: above 0. The stream may lie far from 0
    beside its deviation, up to some thousand times; the results hold to 3 digits all the same.
    """
    mean = stream.mean()
    deviation = ((stream - mean).square().mean() + eps).sqrt()
    return ((rows["products"].sum(1) - mean * rows["gains"]) / deviation + rows["shifts"])[None]
