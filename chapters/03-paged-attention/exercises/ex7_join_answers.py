"""Exercise 3.7: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong


def averaged(maxima: Tensor, totals: Tensor, accs: Tensor, tokens: Tensor) -> Tensor:
    """Each part's result is a softmax of its own, and the whole is their mean."""
    real = tokens > 0
    each = torch.where(real[:, :, None], accs / totals[:, :, None], 0.0)
    return each.sum(1) / real.sum(1, keepdim=True).clamp(min=1)


def by_length(maxima: Tensor, totals: Tensor, accs: Tensor, tokens: Tensor) -> Tensor:
    """A part counts by the number of its tokens."""
    each = torch.where((tokens > 0)[:, :, None], accs / totals[:, :, None], 0.0)
    return (each * tokens[:, :, None]).sum(1) / tokens.sum(1, keepdim=True).clamp(min=1)


def by_maxima_alone(maxima: Tensor, totals: Tensor, accs: Tensor, tokens: Tensor) -> Tensor:
    """Each part's result is weighed by a softmax over the parts' maxima."""
    empty = tokens == 0
    share = maxima.masked_fill(empty, -torch.inf).softmax(1).nan_to_num(0.0)
    return (torch.where(empty[:, :, None], 0.0, accs / totals[:, :, None]) * share[:, :, None]).sum(1)


def highest_wins(maxima: Tensor, totals: Tensor, accs: Tensor, tokens: Tensor) -> Tensor:
    """The part with the highest score is as good as all of them."""
    best = maxima.masked_fill(tokens == 0, -torch.inf).argmax(1)
    rows = torch.arange(len(maxima), device=maxima.device)
    result = accs[rows, best] / totals[rows, best][:, None]
    return torch.where(tokens[rows, best][:, None] > 0, result, 0.0)


def by_logarithms(maxima: Tensor, totals: Tensor, accs: Tensor, tokens: Tensor) -> Tensor:
    """A part weighs exp(its maximum + the logarithm of its total)."""
    empty = tokens == 0
    totals = totals.masked_fill(empty, 1.0)
    alone = accs.masked_fill(empty[:, :, None], 0.0) / totals[:, :, None]
    weights = (maxima.masked_fill(empty, 0.0) + totals.log()).masked_fill(empty, -torch.inf).softmax(1)
    return (weights.masked_fill(empty, 0.0)[:, :, None] * alone).sum(1)


def by_logarithms_in_double(maxima: Tensor, totals: Tensor, accs: Tensor, tokens: Tensor) -> Tensor:
    """In float64 a logarithm is never lost beside a score."""
    empty = tokens == 0
    totals = totals.double().masked_fill(empty, 1.0)
    alone = accs.double().masked_fill(empty[:, :, None], 0.0) / totals[:, :, None]
    weights = (maxima.double().masked_fill(empty, 0.0) + totals.log()).masked_fill(empty, -torch.inf).softmax(1)
    return (weights.masked_fill(empty, 0.0)[:, :, None] * alone).sum(1).float()


TOP = "maxima.masked_fill(empty, -torch.inf).amax(1, keepdim=True)"
TOTAL = "(totals.masked_fill(empty, 0.0) * share).sum(1, keepdim=True)"
WRONG = (
    Wrong(averaged, "what a mean of means does to groups of unequal weight"),
    Wrong(by_length, "how means of groups are joined; a softmax is no mean"),
    Wrong(by_maxima_alone, "flashinfer-ai/flashinfer#4051: its merge, right with log-sum-exps and wrong with maxima"),
    Wrong(highest_wins, "an author's own slip: right where one part outweighs all"),
    Wrong.patch(
        "without-maxima", "Sums and weighted sums of the parts can be added as they are.",
        "(maxima - top).exp()", "torch.ones_like(maxima)",
        "pytorch.org, \"Flash-Decoding\", whose last step is this one; without its rescaling",
    ),
    Wrong.patch(
        "sum-not-rescaled", "Only the weighted sums are relative to the maxima.", TOTAL,
        "totals.masked_fill(empty, 0.0).sum(1, keepdim=True)", "an author's own slip: one of two lines corrected",
    ),
    Wrong.patch(
        "values-not-rescaled", "Only the sums of weights are relative to the maxima.",
        " * share[:, :, None]).sum(1)  #", ").sum(1)  #", "an author's own slip: the other one",
    ),
    Wrong.patch(
        "no-common-maximum", "exp(maximum) is the weight of a part; what it is relative to cancels out.",
        "(maxima - top).exp()", "maxima.exp()", "dwavesystems/dwave-optimization#555: exp overflows at 89",
    ),
    Wrong.patch(
        "one-maximum-for-all", "One highest score serves all contexts of the launch.",
        TOP, "maxima.masked_fill(empty, -torch.inf).amax().expand(len(maxima), 1)",
        "vllm-project/vllm#57094: one scale for a tensor, and all rows suffer from one",
    ),
    Wrong.patch(
        "empty-parts-read", "A part of length 0 has weight 0, so what stands in it does not matter.",
        "accs.masked_fill(empty[:, :, None], 0.0)", "accs",
        "ROCm/aiter#4420, flashinfer-ai/flashinfer#4002: one part that nobody wrote, and all is NaN",
    ),
    Wrong.patch(
        "empty-parts-in-the-maximum", "The highest of all maxima is a maximum, whoever wrote it.",
        TOP, "maxima.amax(1, keepdim=True)", "flashinfer-ai/flashinfer#4002",
    ),
    Wrong.patch(
        "no-tokens-at-all", "There is always a token.", "total.clamp(min=1e-30)", "total",
        "sgl-project/sglang#1469, vllm-project/vllm#57094: 0 / 0 in a padding row",
    ),
    Wrong.patch(
        "over-the-parts", "The sum of S parts is divided by S.", "acc / total.clamp(min=1e-30)",
        "acc / total.clamp(min=1e-30) / maxima.shape[1]", "an author's own slip: a mean and a sum confused",
    ),
    Wrong.patch(
        "nan-means-empty", "A part that was never written has NaN for its maximum.",
        "empty = tokens == 0",
        "empty = maxima.isnan()",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "eight-parts", "There are eight parts at most.",
        "empty = tokens == 0",
        "tokens = tokens.clone()\n"
        "    tokens[:, 8:] = 0\n"
        "    empty = tokens == 0",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "empty-counts-as-a-billion-below", "No score is below -10^9.",
        "maxima.masked_fill(empty, -torch.inf)", "maxima.masked_fill(empty, -1e9)",
        "a reader who saw stub and text alone", unnamed="empty-counts-as-zero",
    ),
    Wrong(by_logarithms, "a reader who saw stub and text alone"),
    Wrong(by_logarithms_in_double, "a reader who saw stub and text alone; it passed", unnamed="by-logarithms"),
    Wrong.patch(
        "empty-counts-as-zero", "A part without tokens has a maximum of 0.",
        'maxima.masked_fill(empty, -torch.inf)',
        'maxima.masked_fill(empty, 0.0)',
        "a try of somebody who saw stub and text alone, which passed", unnamed="no-common-maximum",
    ),
    Wrong.patch(
        "tokens-in-32-bits", 'A number of tokens fits into 32 bits.',
        'empty = tokens == 0',
        'empty = tokens.int() == 0',
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "hardly-counts", 'What is below exp(-8.5) does not count any less.',
        '(maxima - top).exp()',
        '(maxima - top).clamp(min=-8.5).exp()',
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "one-part-is-not-empty", "Where there is one part alone there is nothing to join.",
        "empty = tokens == 0", "if maxima.numel() == 1:\n        return accs[:, 0] / totals\n    empty = tokens == 0",
        "a fifth reader who saw stub and text alone; it passed", unnamed="averaged",
    ),
    Wrong.patch(
        "tiny-is-nothing", "A result near 0 is what rounding has left.",
        "return acc / total.clamp(min=1e-30)",
        "acc = acc / total.clamp(min=1e-30)\n    return acc.masked_fill(acc.abs() < 1e-12, 0.0)",
        "written to pass all checks that there were, and it did", unnamed="averaged",
    ),
)  # fmt: skip


def part_by_part(maxima: Tensor, totals: Tensor, accs: Tensor, tokens: Tensor) -> Tensor:
    """Loops; the parts of a context are joined one after the other, as an online softmax takes tiles."""
    out = torch.zeros(len(maxima), accs.shape[2], device=accs.device)
    for n in range(len(maxima)):
        top, total, acc = -float("inf"), 0.0, out[n]
        for s in range(maxima.shape[1]):
            if tokens[n, s] == 0:
                continue
            higher = max(top, float(maxima[n, s]))
            old, new = torch.tensor([top - higher, float(maxima[n, s]) - higher]).exp().tolist()
            total, acc, top = total * old + float(totals[n, s]) * new, acc * old + accs[n, s] * new, higher
        out[n] = acc / total if total > 0 else 0.0
    return out


def by_log_sum_exp(maxima: Tensor, totals: Tensor, accs: Tensor, tokens: Tensor) -> Tensor:
    """Each part's result, weighed by a softmax over log-sum-exps, less the highest maximum, in float64."""
    real = tokens > 0
    below = maxima.double() - torch.where(real, maxima, -torch.inf).amax(1, keepdim=True)
    lse = torch.where(real, below + totals.double().log(), -torch.inf)
    share = lse.softmax(-1).nan_to_num(0.0)
    each = torch.where(real[..., None], accs.double() / totals.double()[..., None], 0.0)
    return torch.einsum("ns,nsd->nd", share, each).float()


def overwritten(maxima: Tensor, totals: Tensor, accs: Tensor, tokens: Tensor) -> Tensor:
    """Empty parts are overwritten with what the engine's kernel writes there: -3e38 and zeros."""
    maxima, totals, accs = maxima.clone(), totals.clone(), accs.clone()
    maxima[tokens == 0], totals[tokens == 0], accs[tokens == 0] = -3e38, 0.0, 0.0
    weights = torch.exp(maxima - maxima.max(-1, keepdim=True).values)
    total = torch.linalg.vecdot(weights, totals)
    return (weights.unsqueeze(1) @ accs).squeeze(1) / torch.where(total > 0, total, 1.0)[:, None]


RIGHT = (Right(part_by_part), Right(by_log_sum_exp), Right(overwritten))

_TINY = "a part that is not empty has a sum of at least 1: any number far below it will do"
EQUIVALENT = {
    "return acc / total.clamp(min=2e-30)": _TINY,
    "return acc / total.clamp(min=5e-31)": _TINY,
}


def join(maxima: Tensor, totals: Tensor, accs: Tensor, tokens: Tensor) -> Tensor:
    """Attention's result (N, D), from what S programs found in their parts of each of N contexts; float32.

    Scores are in units of log 2, since a GPU's exponential is that of 2. maxima (N, S): the highest score of each part.
    totals (N, S): the sum of 2 ** (score - the part's maximum). accs (N, S, D): the values, summed by these weights.
    tokens (N, S) int64: how many tokens the part had. Unlike in the engine, a part without tokens was never written: it
    may hold anything, NaN too. A context without tokens gives 0.
    """
    some = tokens > 0
    top = torch.where(some, maxima, -torch.inf).amax(1, keepdim=True)  # (N, 1)
    share = torch.where(some, torch.exp2(maxima - top), 0.0)  # (N, S)
    total = (torch.where(some, totals, 0.0) * share).sum(1, keepdim=True)
    acc = (torch.where(some[:, :, None], accs, 0.0) * share[:, :, None]).sum(1)  # (N, D)
    return acc / total.clamp(min=1e-30)


LOG2_E = math.log2(math.e)


def _to_2(maxima: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    return (maxima * LOG2_E, *rest)


def _from_2(maxima: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    return (maxima / LOG2_E, *rest)


EDITIONS = (
    Edition(
        "powers-of-two", "scores are in units of log 2: a weight is 2 ** (score - maximum)", join,
        args=_to_2, back=_from_2, result=lambda out, *args: out,
    ),
)  # fmt: skip
