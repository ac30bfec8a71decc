"""Exercise 1.5: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition
from nanoinfer.engine.sampling import random_bits


def id_by_id(seed: Tensor, step: Tensor, vocab_size: int) -> Tensor:
    """Loops over rows and ids, and Python's own logarithms."""
    from math import log, log1p

    ids, found = torch.arange(vocab_size, device=seed.device), []
    for row in range(len(seed)):
        bits = random_bits(seed[row], step[row], ids).tolist()
        found.append([-log(-log1p(-min(float(one | 1) / 2.0**32, 1 - 2.0**-24))) for one in bits])
    return torch.tensor(found, device=seed.device)


def in_double(seed: Tensor, step: Tensor, vocab_size: int) -> Tensor:
    """float64, in place, transposed: ids by rows."""
    ids = torch.arange(vocab_size, device=seed.device)[:, None]
    u = random_bits(seed[None], step[None], ids).bitwise_or_(1).double().mul_(2.0**-32).clamp_(max=1 - 2.0**-24)
    return u.neg_().log1p_().neg_().log_().neg_().T.float()


_WHERE = "exponential = torch.where(u < 2.0 ** (-10), u + 0.5 * u * u, -torch.log(1 - u))"
EQUIVALENT = {
    _WHERE.replace("<", "<="): "at u = 2^-10 itself both branches give the same to rounding",
    _WHERE.replace("-10", "-9"): "up to 2^-9 the series is off by less than u^2 / 3, which float32 hardly holds",
}


def _ids_backwards(seed: Tensor, step: Tensor, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    return seed, step, torch.arange(vocab_size, device=seed.device).flip(0)


def _size_of_ids(seed: Tensor, step: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, int]:
    return seed, step, len(ids)


@edition(
    "ids-given",
    "the noise is wanted of certain ids, in the order in which they are given",
    args=_ids_backwards,
    back=_size_of_ids,
    result=lambda noise, *args: noise.flip(-1),
    axes=("row", "column"),
)
def gumbel(seed: Tensor, step: Tensor, ids: Tensor) -> Tensor:
    """Standard Gumbel noise of certain ids: (B, K) float32.

    seed, step (B,) int64: of each row. ids (K,) int64: token ids, different ones in any order; column j of the result
    is the noise of ids[j]. It depends on the row's seed and step and on the id alone.
    """
    bits = random_bits(seed[:, None], step[:, None], ids)
    u = ((bits | 1).float() * 2.0**-32).clamp(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-u))
