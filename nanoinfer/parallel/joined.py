"""Samplers over logits that are cut by vocabulary: the tokens of `sampling.py`, the same on all ranks. Chapter 8.

Greedy and unfiltered rows need each rank's best id alone: (score, id), joined by the highest score and then the lowest
id. Filters, penalties and logprobs look at all ids, so the ranks gather their logits first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nanoinfer.engine.cpu_sampling import noise
from nanoinfer.engine.penalties import AllSamplers, PenaltySampler
from nanoinfer.engine.samplers import Samplers
from nanoinfer.engine.sampling import scaled
from nanoinfer.engine.state import BatchState
from nanoinfer.parallel.sharded import ShardedGPT2


class JoinedSamplers:
    """model: whose logits they get, those of its own ids. base: what a single device would use."""

    def __init__(self, model: ShardedGPT2, base: Samplers) -> None:
        self.model, self.base = model, base
        self._ids = torch.arange(model.width, device=model.device) + model.ids.start  # (width,) of the whole model

    def samplers(self, max_batch: int) -> AllSamplers:
        """What a single device would use."""
        scoring = JoinedPenaltySampler(self.model, max_batch, self.base)
        return AllSamplers(self.greedy, self.unfiltered, self.filtered, scoring)

    def greedy(self, logits: Tensor, rows: BatchState) -> Tensor:
        return self._join(logits.float())

    def unfiltered(self, logits: Tensor, rows: BatchState) -> Tensor:
        scores = scaled(logits.float(), rows.temperature)
        noisy = scores + noise(rows, self._ids[None])
        return self._join(torch.where(rows.temperature[:, None] > 0, noisy, scores))

    def filtered(self, logits: Tensor, rows: BatchState) -> Tensor:
        return self.base.filtered(self.model.gathered(logits), rows)

    def _join(self, scores: Tensor) -> Tensor:
        """The ids (B,) of the highest of all ranks' scores (B, width); among equals the lowest id.

        Ranks hold ascending ids, and argmax takes the first of equals. Float64 holds scores and ids exactly.
        """
        best = scores.argmax(-1, keepdim=True)  # (B, 1)
        pairs = torch.cat([scores.gather(-1, best).double(), self._ids[best].double()], 1)  # (B, 2)
        every = self.model.group.all_gather(pairs)  # (size, B, 2)
        winner = every[..., 0].argmax(0, keepdim=True)  # (1, B)
        return every[..., 1].gather(0, winner)[0].long()


class JoinedPenaltySampler(PenaltySampler):
    """A `PenaltySampler` that looks at all ids' logits."""

    def __init__(self, model: ShardedGPT2, max_batch: int, base: Samplers) -> None:
        super().__init__(max_batch, model.config.vocab_size, model.device, base.filtered)
        self._model = model

    def __call__(self, logits: Tensor, rows: BatchState) -> Tensor:
        return super().__call__(self._model.gathered(logits), rows)
