"""Sampling without a sort, where the host may look at the numbers: chapter 1's engine on a CPU. Chapter 5."""

from __future__ import annotations

from torch import Tensor

from nanoinfer.engine import cpu_sampling
from nanoinfer.engine.engine import Engine, Sequence
from nanoinfer.engine.samplers import filters, sample
from nanoinfer.engine.sampling import Choices


class QuickChoice(Engine):
    """An `Engine` that chooses by the cheapest rule that serves all sequences."""

    def choose(self, logits: Tensor, sequences: list[Sequence]) -> Tensor:
        if all(s.params.greedy for s in sequences):
            return logits.argmax(-1)
        rows = Choices.of([(s.request, s.generated) for s in sequences], logits.device)
        if any(filters(s.params) for s in sequences):
            return cpu_sampling.sample_filtered(logits, rows)
        return sample(logits, rows)
