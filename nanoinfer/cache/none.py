"""A cache that remembers nothing: every step feeds every sequence from its first token. Chapter 1.

It makes the slowest engine and the simplest one, so it is the oracle: every later engine must give its tokens. The n-th
token of a sequence costs a pass over all the tokens before it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.model.batch import Batch
from nanoinfer.model.gpt2 import GPT2

if TYPE_CHECKING:
    from nanoinfer.engine.engine import Sequence


class NoCache:
    """Attention among the tokens of the step alone, which are whole sequences."""

    def admit(self, row: int, sequence: Sequence) -> bool:
        """There is always room."""
        return True

    def release(self, row: int) -> None:
        """Nothing was kept."""

    def keep(self, sequence: Sequence, count: int) -> int:
        return 0

    def plan(self, batch: Batch) -> Any:
        assert not batch.past, "nothing was kept"
        return batch

    def attend(self, plan: Any, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention within each sequence: q, k, v (N, H, D) -> (N, H, D).

        The padding stands to the right of a sequence, so the triangle hides it from every real query.
        """
        q, k, v = (plan.padded(x).transpose(1, 2) for x in (q, k, v))  # (B, H, T, D)
        out: Tensor = plan.packed(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2))
        return out


@torch.inference_mode()
def forward_logits(model: GPT2, token_ids: Tensor) -> Tensor:
    """Return logits (B, T, vocab_size), float32, after every token of token_ids (B, T): the oracle of the tests."""
    B, T = token_ids.shape
    row, column = torch.arange(B + 1, device=token_ids.device), torch.arange(T, device=token_ids.device)
    batch = Batch(token_ids.flatten(), column.repeat(B), row[:B].repeat_interleave(T), row * T, T, 0)
    h = model.hidden(batch, partial(NoCache().attend, batch))  # (B * T, C)
    return model.head(h).float().view(B, T, -1)
