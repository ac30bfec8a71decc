"""Exercise 6.7: LayerNorm folded into the product behind it, so that nobody waits for the mean."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Spec, call


def fold(x: Tensor, products: Tensor, gains: Tensor, shifts: Tensor, eps: float) -> Tensor:
    """Rows of a linear layer behind a LayerNorm, from products that were begun before its mean was known: (R,) float32.

    x: (C,) float32, the stream, the input of the LayerNorm; C is at least 1. Its output is y = (x - mean) / deviation *
    gain + shift, with the deviation the square root of the mean squared distance from the mean, plus eps under the
    root. Wanted is weight @ y + bias for R rows, at least one.
    products: (P, R) float32, what P programs or pieces, at least one, have each added up of weight @ (gain * x), mean
    and deviation not yet known: the rows' sums over the pieces are the whole. gains: (R,) float32, weight @ gain.
    shifts: (R,) float32, weight @ shift + bias. Both depend only on the weights, and were made before any step. eps:
    above 0. x may be some thousand times as far from 0 as its deviation is large, and three digits must still be right:
    compute the variance from x - mean.
    """
    mean = x.mean()
    deviation = ((x - mean).square().mean() + eps).sqrt()
    return (products.sum(0) - mean * gains) / deviation + shifts


EXERCISE = Spec(
    reference=fold,
    lines=4,
    example=lambda: call(
        torch.tensor([1.0, 3.0]),
        torch.tensor([[1.0, 2.0], [6.0, -3.0]]),
        torch.tensor([3.0, 1.0]),
        torch.tensor([0.5, 0.0]),
        0.0001,
    ),
    section="One reading of the stream",
    axes=("row",),
    typed=True,
    tolerance=1e-3,
    imports=("import torch", "from torch import Tensor"),
)


def _made(
    case: Case, width: int, rows: int, pieces: int, far: float = 0.0, scale: float = 1.0, eps: float = 1e-5,
    halves: bool = False,
) -> Call:  # fmt: skip
    """A layer and a stream; products in pieces of the width, made in float64."""
    x = case.floats("x", width, scale=scale) + far
    gain, shift = case.floats("gain", width) + 0.5, case.floats("shift", width)
    weight, bias = case.floats("weight", rows, width), case.floats("bias", rows)
    if halves:  # and whole numbers: a sum of these is exact in any order, on any machine
        x, gain, shift, weight = x.round(), *((part.clamp(-1, 1) * 2).round() / 2 for part in (gain, shift, weight))
    terms = weight.double() * (gain * x).double()  # (R, C)
    of = torch.arange(width) * pieces // width
    products = torch.stack([terms[:, of == piece].sum(1) for piece in range(pieces)]).float()
    return call(x, products, (weight @ gain), (weight @ shift + bias), eps)


def a_layer(case: Case) -> Call:
    """Rows behind a LayerNorm whose gain and shift are anything."""
    return _made(case, case.size("width", 3, 8), case.size("rows", 1, 4), case.turn((1, 2, 3)))


def far_from_zero(case: Case) -> Call:
    """A stream that lies far from 0 has the same deviation."""
    return _made(case, 16, 2, 1, case.turn((3000.0, -2500.0)), 4.0, halves=True)


def small_streams(case: Case) -> Call:
    """Where the stream hardly varies, or not at all, eps is what counts."""
    return _made(case, case.size("width", 2, 5), 2, 1, case.turn((0.0, 0.5)), case.turn((1e-3, 0.0, 0.03)), 1e-3)


KINDS = ("one", "one row", "many", "long", "zeros", "equal", "nan", "infinite", "huge", "pieces", "odd")


def any_fold(case: Case) -> Call:
    """One number, one row, more pieces than rows, long streams; zeros, equal rows, and what is no number."""
    kind = case.turn(KINDS)
    if kind == "one":
        return _made(case, 1, 1, 1)
    width = {"long": 700, "many": 30, "odd": 17}.get(kind, 6)
    rows = {"one row": 1, "many": 90, "odd": 5}.get(kind, 3)
    made = _made(case, width, rows, {"pieces": 6, "odd": 5}.get(kind, 2))
    x, products, gains, shifts, eps = made.args
    if kind == "zeros":
        x, products = torch.zeros_like(x), torch.zeros_like(products)
    if kind == "equal":
        products, gains, shifts = (part[..., :1].expand_as(part).clone() for part in (products, gains, shifts))
    fill = {"nan": torch.nan, "infinite": torch.inf, "huge": 1e30}.get(kind)
    if fill is not None:
        shifts[0], products[1, 1] = fill, fill
    return call(x, products, gains, shifts, eps)


CHECKS = (Check(any_fold, len(KINDS), wide=True), Check(a_layer, 3), Check(far_from_zero, 2), Check(small_streams, 3))
