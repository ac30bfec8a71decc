"""The two steps of generation, and who runs them. Chapter 1.

A step is one forward pass, the choice of the next tokens, and their place in the batch state. `EagerRunner` calls it,
operation by operation; chapter 4 records the same step and replays it. Nothing that changes from one decode step to
the next comes from the host, and that is what makes it recordable.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nanoinfer.model import GPT2, Memory, Step
from nanoinfer.sampling import Sampler
from nanoinfer.state import BatchState


@torch.inference_mode()
def prefill_step(model: GPT2, memory: Memory, state: BatchState, prompts: Step, sampler: Sampler) -> None:
    """Run prompts, or a chunk of them, through the model, and write each row's first new token into the state.

    Of a prompt that goes on in a further chunk that token is nonsense; its last chunk writes the right one over it.
    """
    tokens = sampler(model(memory.begin(prompts), memory), state.at(prompts.rows))  # (B,)
    state.token[prompts.rows] = tokens
    state.position[prompts.rows] = prompts.positions.gather(1, prompts.last[:, None]).squeeze(1) + 1


@torch.inference_mode()
def decode_step(model: GPT2, memory: Memory, state: BatchState, batch: int, longest: int, sampler: Sampler) -> Tensor:
    """Feed the newest token of rows 0..batch-1 and advance them; return the tokens that follow (B,).

    Nothing comes from the host but `batch`, `longest` (no fed token stands at a position >= longest) and the choice
    of sampler. All else is read from the state and written back: the next call needs no input.
    """
    rows = state.at(slice(0, batch))
    rows.step.add_(1)  # the prompt's own step was step 0
    last = torch.zeros_like(rows.position)  # (B,) of one column
    fed = Step(rows.token[:, None], rows.position[:, None], last, slice(0, batch), longest)
    rows.token.copy_(sampler(model(memory.begin(fed), memory), rows))
    rows.position.add_(1)
    return rows.token


class EagerRunner:
    """Runs every step by calling it."""

    def __init__(self, model: GPT2, memory: Memory, state: BatchState) -> None:
        self.model, self.memory, self.state = model, memory, state

    def prefill(self, prompts: Step, sampler: Sampler) -> None:
        """One pass over prompts, or over a chunk of them."""
        prefill_step(self.model, self.memory, self.state, prompts, sampler)

    def decode(self, batch: int, longest: int, sampler: Sampler) -> Tensor:
        """One token for each of the rows 0..batch-1; returns them (B,)."""
        return decode_step(self.model, self.memory, self.state, batch, longest, sampler)
