"""A sampler for rows that want penalties or logprobs: what each has generated is counted on the device. Chapter 5.

OpenAI's rule: logit - presence * (count > 0) - frequency * count, of generated tokens only. It costs a few more passes
over the logits, so it runs where a row of the batch wants it; the tokens of all other rows are the same with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ints
from typing import NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.logprobs import logprobs, width
from nanoinfer.engine.samplers import Sampler
from nanoinfer.engine.state import BatchState, Fetch, upload
from nanoinfer.requests import SamplingParams


def penalised(logits: Tensor, counts: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
    """Logits (B, V) after penalties (B, 1) each, where an id was generated counts (B, V) times."""
    return logits - presence * (counts > 0) - frequency * counts


class AllSamplers(NamedTuple):
    """`Samplers`, and one that serves any rows at all."""

    greedy: Sampler
    unfiltered: Sampler
    filtered: Sampler  # any rows without penalties and logprobs
    scoring: PenaltySampler


class PenaltySampler:
    """A `Sampler`: penalises, lets `base` choose, counts, and leaves the logprobs of what was chosen.

    Its tensors have an entry a row, the dummy row included, and stay where they are: a captured step knows their
    addresses. The counts take 4 bytes a row and id: 103 MB for 512 rows of GPT-2's vocabulary.
    """

    def __init__(self, max_batch: int, vocab_size: int, device: torch.device, base: Sampler) -> None:
        self.base, rows = base, max_batch + 1
        self.counts = torch.zeros(rows, vocab_size, dtype=torch.int32, device=device)  # how often each id was generated
        self.weights = torch.zeros(2, rows, dtype=torch.float32, device=device)  # presence and frequency penalty
        self.logprobs = torch.zeros(rows, width(vocab_size), dtype=torch.float32, device=device)
        self._idle = True  # no row has been penalised yet: all weights are 0

    def __call__(self, logits: Tensor, rows: BatchState) -> Tensor:
        """Logits (B, V) and their rows, live ones by number and others as the dummy row -> next tokens (B,) int64."""
        row, logits = rows.row, logits.float()
        tokens = self.base(penalised(logits, self.counts[row], *self.weights[:, row, None]), rows)
        self.counts[row, tokens] += (row < len(self.counts) - 1).int()  # the dummy row counts nothing
        self.logprobs.index_copy_(0, row, logprobs(logits, tokens))
        return tokens

    def admit(self, row: int, params: SamplingParams, token_ids: Ints[int] = ()) -> None:
        """A sequence begins in row `row`; token_ids: what it generated before it was preempted, if it is penalised."""
        self._idle &= not params.penalises
        if self._idle:
            return
        self.weights[0, row].fill_(params.presence_penalty)
        self.weights[1, row].fill_(params.frequency_penalty)
        self.counts[row].zero_()
        if token_ids:
            ids = upload(token_ids, torch.int64, self.counts.device)
            self.counts[row].index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Rows `sources` (n,) become rows `targets` (n,); no row is in both."""
        if not self._idle:
            self.counts[targets] = self.counts[sources]
            self.weights[:, targets] = self.weights[:, sources]

    def fetch(self, rows: Iterable[int]) -> Fetch:
        """The logprobs of the newest tokens of these rows, on their way to the host: `of_host` reads each list."""
        return Fetch(self.logprobs[upload([*rows], torch.int64, self.logprobs.device)])
