"""The two steps of generation. Chapter 1.

A step is one forward pass, the choice of the next tokens, and their place in the batch state. `EagerRunner` calls it,
operation by operation; chapter 4 records the same step and replays it. Nothing that changes from one decode step to
the next comes from the host, and that is what makes it recordable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.state import BatchState
from nanoinfer.model.batch import NEWEST, Batch
from nanoinfer.model.gpt2 import GPT2, Cache

Model = Callable[[Batch, Cache], Tensor]  # a GPT2, or what stands for one: logits (K, V)


@torch.inference_mode()
def prefill_step(model: Model, cache: Cache, state: BatchState, batch: Batch, sampler: Sampler) -> Tensor:
    """Run prompts, chunks of them, and rows that decode, side by side; return the tokens that follow (K,).

    Each goes to its row of the state, `batch.logits_row`, which is live from then on. A row whose prompt goes on
    changes nothing there.
    """
    assert batch.logits_at is not None
    assert batch.logits_row is not None
    newest = batch.token_ids == NEWEST
    token_ids = torch.where(newest, state.token[batch.row], batch.token_ids)
    positions = torch.where(newest, state.position[batch.row], batch.positions)
    state.row.index_copy_(0, batch.logits_row, batch.logits_row)  # ahead of the sampler, which may go by it
    rows = state.at(batch.logits_row)
    logits = model(replace(batch, token_ids=token_ids, positions=positions), cache)  # (K, V)
    tokens = sampler(logits, rows) if len(logits) else batch.logits_row  # none, where no prompt is complete
    ones = torch.ones_like(tokens)
    columns = tokens, positions[batch.logits_at] + 1, rows.step + 1, ones  # token, position, step, live
    state.integers[:4].index_copy_(1, batch.logits_row, torch.stack(columns))
    return tokens


@torch.inference_mode()
def decode_step(model: GPT2, cache: Cache, state: BatchState, batch: int, longest: int, sampler: Sampler) -> Tensor:
    """Feed the newest token of rows 0..batch-1 and advance them; return the tokens that follow (B,).

    Nothing comes from the host but `batch`, `longest` (no fed token stands at a position >= longest) and the choice
    of sampler. All else is read from the state and written back: the next call needs no input. A row that is not live
    is padding, and stays as it is: token 0 at position 0 of the dummy row, whose one slot it writes and reads.
    """
    rows = state.at(slice(0, batch))
    tokens = sampler(model(Batch(rows.token, rows.position, rows.row, longest), cache), rows)  # (B,)
    return advance(rows, tokens)


def advance(rows: BatchState, tokens: Tensor) -> Tensor:
    """Rows go on to their next tokens (B,); a padding row stays as it is. Returns the state's own tokens (B,)."""
    torch.mul(tokens, rows.live, out=rows.token)
    rows.integers[1:3].add_(rows.live)  # position and step
    return rows.token
