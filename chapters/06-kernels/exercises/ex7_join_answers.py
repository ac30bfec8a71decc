"""Exercise 6.7: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong

Parts = list[tuple[Tensor, Tensor, Tensor]]


def mean_of_parts(parts: Parts) -> Tensor:
    """Each part is attention over its tokens, and the output is their mean."""
    outs, tops, totals = (torch.stack(each) for each in zip(*parts, strict=True))
    return (outs / totals.clamp(min=1e-30)[:, None]).mean(0)


def weighed_by_totals(parts: Parts) -> Tensor:
    """A part counts by its sum of weights."""
    outs, tops, totals = (torch.stack(each) for each in zip(*parts, strict=True))
    return outs.sum(0) / totals.sum()


def divided_first(parts: Parts) -> Tensor:
    """Each part is divided by its own sum, and weighed by its highest score."""
    outs, tops, totals = (torch.stack(each) for each in zip(*parts, strict=True))
    weight = (tops - tops.max()).exp() * (totals > 0)
    return weight @ (outs / totals.clamp(min=1e-30)[:, None]) / weight.sum()


def softmax_of_tops(parts: Parts) -> Tensor:
    """The parts are weighed by a softmax of their highest scores."""
    outs, tops, totals = (torch.stack(each) for each in zip(*parts, strict=True))
    return tops.softmax(0) @ outs / totals.sum()


def two_by_two(parts: Parts) -> Tensor:
    """Parts are joined one after the other: what comes is weighed, and what was there has its weight."""
    out, top, total = parts[0]
    for other, score, more in parts[1:]:
        high = torch.maximum(top, score)
        out = out * (top - high).exp() + other * (score - high).exp()
        total = total + more * (score - high).exp()
        top = high
    return out / total


WEIGHT = "weight = (tops - tops.max()).exp()"
WRONG = (
    Wrong(mean_of_parts, "an author's own slip: parts of few tokens count as much as those of many"),
    Wrong(weighed_by_totals, "Dao-AILab/flash-attention#949 asks about it: parts added up without the highest score of all"),
    Wrong(divided_first, "an author's own slip: a part of one token and one of a hundred have the same highest score"),
    Wrong(softmax_of_tops, "an author's own slip: outputs are weighed, and sums of weights are not"),
    Wrong(two_by_two, "a running join that forgets to weigh its own sum down when a higher score comes"),
    Wrong.patch(
        "without-the-highest", "exp takes any score.", WEIGHT, "weight = tops.exp()",
        "Dao-AILab/flash-attention#949: whether a join needs the highest score of all",
    ),
    Wrong.patch(
        "first-is-highest", "Scores are measured by the first part's.", "tops.max()", "tops[0]",
        "tile-ai/tilelang#328: NaN in a join, out of the difference to a highest score that was none",
    ),
    Wrong.patch(
        "lowest", "The lowest score is what all are measured by, so that no factor vanishes.", "tops.max()", "tops.min()",
        "an author's own slip: all factors are at least 1, and a part without tokens makes them infinite",
    ),
    Wrong.patch(
        "totals-not-weighed", "The sum of weights is the sum of the sums.", "weight @ totals", "totals.sum()",
        "an author's own slip: outputs are weighed by the highest score, and sums are not",
    ),
    Wrong.patch(
        "nothing-is-5e4", "No score is below -50,000.", WEIGHT,
        "weight = torch.where(tops < -5e4, 0.0, (tops - tops.max()).exp())",
        "flashinfer-ai/flashinfer#4450: scores below -5e4 were taken for nothing, and zeros came out",
    ),
    Wrong.patch(
        "nan-is-nothing", "A part that is no number is left out.", "weight @ outs", "weight @ outs.nan_to_num(0.0)",
        "warpfront/hipfire#574: a NaN in the cache; where it is hidden, the text goes on and is wrong",
    ),
    Wrong.patch(
        "nothing-is-0", "A part without tokens has the highest score 0.", WEIGHT,
        "tops = tops * (totals > 0)\n    " + WEIGHT,
        "ROCm/aiter#4420: splits without tokens were trusted like all others",
    ),
)


def one_after_the_other(parts: Parts) -> Tensor:
    """A running join."""
    out, total = torch.zeros_like(parts[0][0]), torch.zeros(())
    top = torch.tensor(-1e30)
    for mine, score, more in parts:
        high = torch.maximum(top, score)
        down, up = (top - high).exp(), (score - high).exp()
        out, total, top = down * out + up * mine, down * total + up * more, high
    return out / total


def by_logarithms(parts: Parts) -> Tensor:
    """Each part's share by a softmax over the logarithms of all its weights, of parts with tokens alone."""
    some = [part for part in parts if float(part[2]) > 0]
    shares = torch.stack([top.double() + total.double().log() for _, top, total in some]).softmax(0)
    return sum((s * (o.double() / t) for s, (o, _, t) in zip(shares, some, strict=True))).float()  # type: ignore[union-attr]


def in_double(parts: Parts) -> Tensor:
    """In float64, and by plain Python."""
    highest = max(float(top) for _, top, _ in parts)
    factors = [(top.double() - highest).exp() for _, top, _ in parts]
    total = sum(f * t.double() for f, (_, _, t) in zip(factors, parts, strict=True))
    return (sum(f * o.double() for f, (o, _, _) in zip(factors, parts, strict=True)) / total).to(torch.float32)


RIGHT = (Right(one_after_the_other), Right(by_logarithms), Right(in_double))
EQUIVALENT: dict[str, str] = {}


def heads(outs: Tensor, tops: Tensor, totals: Tensor) -> Tensor:
    """Attention's output (D,) float32, from what P programs have made of some tokens each.

    outs: (D, P), a column for each part: its output not yet divided. tops: (P,), highest scores. totals: (P,), sums of
    weights; all float32. Of tokens with scores s and values v these are the sum of exp(s - highest) * v, highest, and
    the sum of exp(s - highest). A part without tokens has zeros, -1e30 and 0. At least one part has tokens; their
    scores lie anywhere from -1e5 to 1e5. What comes out is what attention over all of these tokens gives: the sum of
    weight times value over the sum of weights, with the weights of one softmax. A value that is infinite or NaN shows.
    """
    weight = (tops - tops.max()).exp()
    return outs @ weight / (totals @ weight)


def _columns(parts: Parts) -> tuple[Tensor, ...]:
    outs, tops, totals = (torch.stack(each) for each in zip(*parts, strict=True))
    return outs.T.contiguous(), tops, totals


def _tuples(outs: Tensor, tops: Tensor, totals: Tensor) -> tuple[Parts]:
    return (list(zip(outs.T.unbind(), tops.unbind(), totals.unbind(), strict=True)),)  # type: ignore[arg-type]


EDITIONS = (Edition("heads", "parts are columns of one tensor", heads, args=_columns, back=_tuples),)
