"""Exercise 6.7: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong

DEVIATION = "((x - mean).square().mean() + eps).sqrt()"
RESULT = "(products.sum(0) - mean * gains) / deviation + shifts"
WRONG = (
    Wrong.patch(
        "mean-of-squares", "The deviation's square is the mean of the squares, without the squared mean.", DEVIATION,
        "(x.square().mean() - mean.square() + eps).sqrt()",
        "an author's own slip: two large numbers, and what counts lies behind their last digits",
    ),
    Wrong.patch(
        "squares-alone", "The deviation is the root of the mean of the squares.", DEVIATION,
        "(x.square().mean() + eps).sqrt()",
        "an RMSNorm in the place of a LayerNorm, as engines for newer models have it",
    ),
    Wrong.patch(
        "one-fewer", "A mean of squares has one fewer in its denominator.", DEVIATION,
        "((x - mean).square().sum() / (len(x) - 1) + eps).sqrt()",
        "torch.var divides by one fewer unless told otherwise: its documentation, `correction`",
    ),
    Wrong.patch(
        "eps-outside", "eps keeps the denominator from being 0.", DEVIATION,
        "(x - mean).square().mean().sqrt() + eps",
        "pytorch/pytorch's documentation of LayerNorm has eps under the root; an author's own slip",
    ),
    Wrong.patch(
        "no-eps", "eps is too small to count.", " + eps", "",
        "an author's own slip: a stream that does not vary gives a division by 0",
    ),
    Wrong.patch(
        "mean-for-all", "The mean is taken from what the product gives.", "mean * gains", "mean",
        "an author's own slip: it was multiplied by all weights of the row, too",
    ),
    Wrong.patch(
        "no-mean", "The products know the mean already.", "products.sum(0) - mean * gains", "products.sum(0)",
        "an author's own slip: right as long as the stream's mean is 0",
    ),
    Wrong.patch(
        "shift-divided", "Everything is divided by the deviation.", RESULT,
        "(products.sum(0) - mean * gains + shifts) / deviation",
        "an author's own slip: the shift comes behind the division",
    ),
    Wrong.patch(
        "mean-not-divided", "The products are divided, and the mean is what it is.", RESULT,
        "products.sum(0) / deviation - mean * gains + shifts",
        "an author's own slip: it stands in the same bracket as x",
    ),
    Wrong.patch(
        "mean-of-pieces", "What programs bring is averaged.", "products.sum(0)", "products.mean(0)",
        "an author's own slip: right with one piece",
    ),
    Wrong.patch(
        "last-piece", "The last program to come has the sum.", "products.sum(0)", "products[-1]",
        "ROCm/aiter#4920: the last block reduces, and takes all of the parts for it",
    ),
    Wrong.patch(
        "nan-is-nothing", "A product that is no number is left out.", "products.sum(0)", "products.nansum(0)",
        "warpfront/hipfire#574: a NaN that is hidden goes on as a wrong text",
    ),
)  # fmt: skip


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


def mean_first(x: Tensor, products: Tensor, gains: Tensor, shifts: Tensor, eps: float) -> Tensor:
    """The mean's share is taken from one of the pieces; the distances are normed as a vector."""
    mean = torch.mean(x)
    pieces = torch.cat([products, (-mean * gains)[None]])
    away = x - mean
    return torch.addcdiv(shifts, pieces.sum(dim=0), torch.sqrt(away @ away / x.numel() + eps))


RIGHT = (Right(as_written), Right(in_double), Right(mean_first))
EQUIVALENT: dict[str, str] = {}


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


def _named(x: Tensor, products: Tensor, gains: Tensor, shifts: Tensor, eps: float) -> tuple[object, ...]:
    return x[None], eps, {"shifts": shifts, "products": products.T.contiguous(), "gains": gains}


def _plain(stream: Tensor, eps: float, rows: dict[str, Tensor]) -> tuple[object, ...]:
    return stream[0], rows["products"].T, rows["gains"], rows["shifts"], eps


EDITIONS = (
    Edition(
        "finish", "rows come by name, with pieces as columns, and the result has a line of its own", finish,
        args=_named, back=_plain, result=lambda result, *plain: result[None], axes=("line", "row"),
    ),
)  # fmt: skip
