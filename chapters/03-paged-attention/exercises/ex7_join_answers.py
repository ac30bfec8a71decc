"""Exercise 3.7: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition


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


_TINY = "a part that is not empty has a sum of at least 1: any number far below it will do"
EQUIVALENT = {
    "return (acc / total.clamp(min=2e-30)).float()": _TINY,
    "return (acc / total.clamp(min=5e-31)).float()": _TINY,
}


LOG2_E = math.log2(math.e)


def _to_2(maxima: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    return (maxima * LOG2_E, *rest)


def _from_2(maxima: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    return (maxima / LOG2_E, *rest)


@edition("powers-of-two", "scores are in units of log 2: a weight is 2 ** (score - maximum)", args=_to_2, back=_from_2)
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
    return (acc / total.clamp(min=1e-30)).float()
