"""A memory that remembers nothing but the text: the whole context again, for every token. Chapter 1.

It is the slowest engine and the simplest, so it is the oracle: every later engine must give its tokens. The n-th
token costs a pass over all n before it. Text: chapters/01-naive.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.engine.state import upload
from nanoinfer.model.batch import Step
from nanoinfer.model.gpt2 import GPT2


class FullContext:
    """Attention for a step that brings its whole context along: a query reads the step's own columns up to itself."""

    def begin(self, step: Step) -> Step:
        return step

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention among the columns of this step: q, k, v (B, T, H, D) -> (B, T, H, D).

        Padding stands on the right, so no real query sees it and no mask is needed beyond the triangle.
        """
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, D)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Naive(FullContext):
    """The text of each row, written by position; every step reads all of it through the model again."""

    def __init__(self, max_batch: int, max_len: int, device: torch.device) -> None:
        self.max_len = max_len
        self.row = torch.arange(max_batch, device=device)
        self.text = torch.zeros(max_batch, max_len, dtype=torch.int64, device=device)  # token ids

    def begin(self, step: Step) -> Step:
        """Write the new tokens down; return the step over every token so far, (B, step.longest)."""
        B, S = len(step.token_ids), step.longest
        self.text[self.row[step.rows][:, None], step.positions] = step.token_ids
        last = step.positions.gather(1, step.last[:, None]).squeeze(1)  # (B,) the newest token's position
        positions = torch.arange(S, device=last.device).expand(B, S)
        return Step(self.text[step.rows, :S], positions, last=last, rows=step.rows, longest=S)

    def can_admit(self, tokens: int) -> bool:
        """Whether a row of up to `tokens` tokens fits now. A row of text is always there."""
        return True

    def admit(self, row: int, tokens: int) -> None:
        """Make room for a row of up to `tokens` tokens. Old text need not be erased: nothing past `last` is read."""

    def grow(self, lengths: Sequence[int]) -> None:
        """Rows 0, 1, ... are about to hold texts of these lengths: their room is there already."""

    def release(self, rows: Sequence[int]) -> None:
        """Give the rows' room back."""

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Rows `sources` are to be known as rows `targets`, which are free."""
        source, target = upload([sources, targets], torch.int64, self.text.device)
        self.text[target] = self.text[source]


@torch.inference_mode()
def forward_logits(model: GPT2, token_ids: Tensor) -> Tensor:
    """Logits (B, T, vocab_size), float32, after every token of token_ids (B, T): the oracle of the tests."""
    B, T = token_ids.shape
    positions = torch.arange(T, device=token_ids.device).expand(B, T)
    rows = torch.arange(B, device=token_ids.device)
    step = Step(token_ids, positions, last=torch.full_like(rows, T - 1), rows=rows, longest=T)
    return model.head(model.hidden(step, FullContext())).float()
