"""The step that verifies: newest tokens and drafts go in, and what is right of the drafts comes out. Chapter 7.

Position i of a text is sampled with its own noise, a function of (seed, i, id), so what a sequence chooses there
depends on the text before it alone. A draft is kept as long as it is what was chosen in its place: then the text that
the model read after it was the sequence's own, and the tokens are those of plain decoding, sampled ones too. The idea
that drafter and model share their noise: Daliri, Musco, Suresh 2024, "Coupling without Communication and
Drafter-Invariant Speculative Decoding". Drafts and verification: Leviathan et al. 2023, "Fast Inference from
Transformers via Speculative Decoding".
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.cache.ragged import CapturedRagged
from nanoinfer.engine.samplers import Sampler
from nanoinfer.engine.state import BatchState
from nanoinfer.kernels import paged_attention_torch
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2, Cache
from nanoinfer.speculate.drafts import NONE
from nanoinfer.speculate.lookup import PromptLookup

ONE_BY_ONE = 32  # tokens of a verify step: for more, the ragged kernel is as fast, which reads a context once a row


@torch.inference_mode()
def verify_step(
    model: GPT2, cache: Cache, state: BatchState, work: Tensor, context: int, sampler: Sampler,
    drafter: PromptLookup | None = None,
) -> Tensor:  # fmt: skip
    """Feed the newest token and the drafts of rows 0..B-1, and advance each by what it would have chosen anyway.

    work: (B, 1 + k), where each row's text must end, up to which there is room; and its drafts, NONE on the right where
    it has fewer. With a drafter only which are NONE counts, and the drafts are made here. Rows that are not live, or
    have come to their end, are padding. Nothing else comes from the host but `context`, as for `decode_step`.
    Returns (B, k + 3): the tokens that a row chose, how many of them are its own, and how many drafts it had.
    """
    rows, drafts = state.at(slice(0, len(work))), work[:, 1:]
    if drafter:
        drafts = torch.where(drafts == NONE, NONE, drafter.propose(rows.row, rows.position, drafts.shape[1]))
    places = rows.position[:, None] + torch.arange(work.shape[1], device=work.device)  # (B, k + 1)
    real = F.pad(drafts != NONE, (1, 0), value=True) & (rows.live[:, None] > 0) & (places < work[:, :1])
    going, drafts = real[:, 0], torch.where(real[:, 1:], drafts, NONE)
    batch = lay_out(state, drafts, torch.where(real, places, NONE), context, getattr(cache, "one_by_one", 0))
    hidden = model.hidden(batch, partial(cache.attend, cache.plan(batch)))  # (B * (k + 1), C)
    chosen = choose_each(model.head(hidden), rows, sampler)  # (B, k + 1)
    accepted = accept(drafts, chosen)  # (B,)
    if drafter:
        drafter.note(batch.row.view_as(places), places + 1, chosen)
    counts = (accepted + 1) * going
    rows.token.copy_(torch.where(going, chosen.gather(1, accepted[:, None])[:, 0], rows.token))
    rows.integers[1:3].add_(counts)  # position and step
    return torch.cat([chosen, counts[:, None], (drafts != NONE).sum(1, keepdim=True)], 1)


def lay_out(state: BatchState, drafts: Tensor, places: Tensor, context: int, one_by_one: int) -> Batch:
    """The newest token and the drafts (B, k) of each row as a batch: a rectangle, whose padding goes to the dummy row.

    places: (B, k + 1) positions; NONE for padding. one_by_one: of how few tokens each attends for itself.
    """
    B, columns = places.shape
    rows, real = state.at(slice(0, B)), places != NONE
    row = torch.where(real, rows.row[:, None], state.dummy).flatten()
    token_ids = torch.cat([rows.token[:, None], drafts], 1).clamp(min=0).flatten()
    positions = places.clamp(min=0).flatten()
    if B * columns <= one_by_one:
        return Each(token_ids, positions, row, row, 1, context - 1)
    starts = torch.arange(B + 1, device=row.device) * columns
    return Runs(token_ids, positions, row, starts, columns, context - 1)


def choose_each(logits: Tensor, rows: BatchState, sampler: Sampler) -> Tensor:
    """Choose a token (B, k + 1) after each row's newest token and each draft, as if the drafts were its text."""
    B = rows.token.shape[0]
    each = torch.arange(len(logits), device=logits.device)
    columns = len(logits) // B
    places = rows.at(each // columns)  # copies
    places.step.add_(each % columns)
    return sampler(logits, places).view(B, columns)


def accept(drafts: Tensor, chosen: Tensor) -> Tensor:
    """How many drafts (B, k) are kept of each row (B,): up to the first that is not what was chosen in its place."""
    return (chosen[:, :-1] == drafts).long().cumprod(1).sum(1)


class Each(Batch):
    """Tokens that each read their sequence's pages for themselves, as a decode step of as many rows would."""

    @property
    def rows(self) -> int:
        return len(self.token_ids)


class Runs(Batch):
    """A rectangle of B rows, which may end in padding: what a row is, its first token says."""

    def last(self, x: Tensor) -> Tensor:
        return x.view(self.rows, self.longest, *x.shape[1:])[:, 0]


class VerifiedPaged(CapturedRagged):
    """A `CapturedRagged` cache with room for the kernel's sums of so few tokens that each reads for itself."""

    one_by_one = 0

    def __init__(self, config: ModelConfig, *args: Any, **settings: Any) -> None:
        super().__init__(config, *args, **settings)
        if self.kernels is not paged_attention_torch:
            self.one_by_one, rows = ONE_BY_ONE, max(len(self.tables), ONE_BY_ONE)
            self.splits_done = torch.zeros(rows * config.n_head, dtype=torch.int32, device=self.k.device)
