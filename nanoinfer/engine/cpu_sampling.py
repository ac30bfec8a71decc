"""`sampling.sample_filtered` for a CPU: the same tokens, without a sort of all ids and with noise for few of them.

Whether the highest ids suffice is looked up in the scores. On a GPU that would be a wait for the device; a CPU has
nothing to wait for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanoinfer.engine import samplers, sampling

SPARE = 64  # ids beyond the largest top_k that are looked at, in case several tie with the last one kept


def sample_filtered(logits: Tensor, rows: Any) -> Tensor:
    """As `sampling.sample_filtered`: logits (B, V) and their rows -> next tokens (B,) int64."""
    sampled = rows.temperature > 0
    top_k = torch.where(sampled, rows.top_k, 1)  # (B,) a greedy row needs its highest id
    n = int(top_k.max()) + SPARE
    if int(top_k.min()) == 0 or n >= logits.shape[-1]:
        return sampling.sample_filtered(logits, rows)
    highest, ids = logits.topk(n, -1)  # (B, n), descending
    scores = sampling.scaled(highest, rows.temperature)
    lowest = sampling.threshold(scores, top_k, rows.top_p)  # (B, 1)
    if bool((scores[:, -1:] >= scores.gather(-1, top_k[:, None] - 1)).any()):
        return sampling.sample_filtered(logits, rows)  # ids that were not looked at may tie with the k-th
    noisy = torch.where(sampled[:, None], scores + noise(rows, ids), scores).masked_fill(scores < lowest, -torch.inf)
    best = noisy == noisy.amax(-1, keepdim=True)
    last = logits.shape[-1] - 1  # where NaN is among the scores, none equals the best
    return torch.where(best, ids, last).amin(-1)  # among equals the lowest id


def noise(rows: Any, ids: Tensor) -> Tensor:
    """What `sampling.gumbel` gives the ids (B, n) of each row: (B, n) float32."""
    bits = sampling.random_bits(rows.seed[:, None], rows.step[:, None], ids)
    u = ((bits | 1).float() * 2.0**-32).clamp(max=1 - 2.0**-24)
    exponential = torch.where(u < 2.0**-10, u + 0.5 * u * u, -torch.log(1 - u))
    return -exponential.log()


SAMPLERS = samplers.SAMPLERS._replace(filtered=sample_filtered)
