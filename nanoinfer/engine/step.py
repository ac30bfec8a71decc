"""The two steps of generation. Chapter 1.

A step is one forward pass, the choice of the next tokens, and their place in the batch state. `EagerRunner` calls it,
operation by operation; chapter 4 records the same step and replays it. Nothing that changes from one decode step to
the next comes from the host, and that is what makes it recordable.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.state import BatchState
from nanoinfer.model.batch import Step
from nanoinfer.model.gpt2 import GPT2, Memory


@torch.inference_mode()
def prefill_step(model: GPT2, memory: Memory, state: BatchState, prompts: Step, sampler: Sampler) -> None:
    """Run prompts, or a chunk of them, through the model, and write each row's first new token into the state.

    Of a prompt that goes on in a further chunk that token is nonsense; its last chunk writes the right one over it.
    """
    assert isinstance(prompts.rows, Tensor)  # a slice is a decode step's
    rows = state.at(prompts.rows)
    rows.step.zero_()  # it is token 0 that is chosen, however many chunks came before
    tokens = sampler(model(memory.begin(prompts), memory), rows)  # (B,)
    state.token.index_copy_(0, prompts.rows, tokens)
    length = prompts.positions.gather(1, prompts.last.clamp(min=0)[:, None]).squeeze(1) + 1  # (B,)
    state.position.index_copy_(0, prompts.rows, length)
    state.step.index_fill_(0, prompts.rows, 1)


@torch.inference_mode()
def decode_step(model: GPT2, memory: Memory, state: BatchState, batch: int, longest: int, sampler: Sampler) -> Tensor:
    """Feed the newest token of rows 0..batch-1 and advance them; return the tokens that follow (B,).

    Nothing comes from the host but `batch`, `longest` (no fed token stands at a position >= longest) and the choice
    of sampler. All else is read from the state and written back: the next call needs no input. A row that is not live
    is padding, and made anew here: token 0 at position 0 of a text of its own, which it neither reads nor writes.
    """
    rows = state.at(slice(0, batch))
    last = rows.live - 1  # (B,) the one column; -1, no column at all, in a padding row
    fed = Step(rows.token[:, None], rows.position[:, None], last, slice(0, batch), longest)
    tokens = sampler(model(memory.begin(fed), memory), rows)  # (B,)
    torch.mul(tokens, rows.live, out=rows.token)
    rows.integers[1:3].add_(rows.live)  # position and step
    return rows.token
