"""A cache that remembers nothing but the text: the whole context again, for every token. Chapter 1.

It is the slowest engine and the simplest, so it is the oracle: every later engine must give its tokens. The n-th
token costs a pass over all n before it. Text: chapters/01-naive.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.model.batch import Batch
from nanoinfer.model.gpt2 import GPT2


@dataclass(frozen=True)
class Plan:
    """What there is to know of a batch that brings its whole context along."""

    batch: Batch


class FullContext:
    """Attention for a batch that brings its whole context along: a query reads its row's tokens up to itself."""

    blocks = None  # each row has its room from the start

    def plan(self, batch: Batch) -> Plan:
        return Plan(batch)

    def attend(self, plan: Any, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention among the tokens of each row: q, k, v (N, H, D) -> (N, H, D).

        Padding stands on the right, so no real query sees it and no mask is needed beyond the triangle.
        """
        batch: Batch = plan.batch
        q, k, v = (batch.padded(x).transpose(1, 2) for x in (q, k, v))  # (B, H, T, D)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return batch.packed(out.transpose(1, 2))

    def clear(self, rows: Tensor) -> None:
        """These rows (n,) begin new texts. Nothing of the old ones is ever read."""

    def free(self, rows: slice) -> None:
        """These rows are padding from now on. What they read makes no difference to anyone."""

    def update(self) -> None:
        """Called before each step, for what the host alone knows: nothing."""


class Naive(FullContext):
    """The text of each row, written by position; every step reads all of it through the model again."""

    def __init__(self, max_batch: int, max_len: int, device: torch.device) -> None:
        self.max_len = max_len
        self.text = torch.zeros(max_batch + 1, max_len, dtype=torch.int64, device=device)  # token ids; a dummy row

    def plan(self, batch: Batch) -> Plan:
        """Write the new tokens down; of the rows that want a token, all tokens so far are to be run."""
        self.text[batch.row, batch.positions] = batch.token_ids
        if batch.no_context:
            return Plan(batch)
        at = slice(None) if batch.logits_at is None else batch.logits_at
        row, last, S = batch.row[at], batch.positions[at], batch.max_context  # (K,) each: the newest tokens
        column = torch.arange(S, device=row.device)
        starts = torch.arange(len(row) + 1, device=row.device) * S
        whole = Batch(
            self.text[row, :S].flatten(), column.repeat(len(row)), row.repeat_interleave(S), S, max_new=S,
            no_context=True, starts=starts, logits_at=starts[:-1] + last, logits_row=row,
        )  # fmt: skip
        return Plan(whole)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Rows `sources` (n,) are to be known as rows `targets`, which are free."""
        self.text.index_copy_(0, targets, self.text.index_select(0, sources))


@torch.inference_mode()
def forward_logits(model: GPT2, token_ids: Tensor) -> Tensor:
    """Logits (B, T, vocab_size), float32, after every token of token_ids (B, T): the oracle of the tests."""
    B, T = token_ids.shape
    row, column = torch.arange(B + 1, device=token_ids.device), torch.arange(T, device=token_ids.device)
    batch = Batch(
        token_ids.flatten(),
        column.repeat(B),
        row[:B].repeat_interleave(T),
        T,
        max_new=T,
        no_context=True,
        starts=row * T,
    )
    h = model.hidden(batch, partial(FullContext().attend, Plan(batch)))  # (B * T, C)
    return model.head(h).float().view(B, T, -1)
