"""The two steps of generation, and who runs them. Chapter 1.

A step is one forward pass, the choice of the next tokens, and their place in the batch state. `EagerRunner` calls it,
operation by operation; chapter 4 records the same step and replays it. Nothing that changes from one decode step to
the next comes from the host, and that is what makes it recordable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


class EagerRunner:
    """Runs every step by calling it."""

    def __init__(self, model: GPT2, memory: Memory, state: BatchState) -> None:
        self.model, self.memory, self.state = model, memory, state

    def padded(self, batch: int, columns: int, fresh: bool) -> tuple[int, int]:
        """Rows and columns that prompts of this shape should be padded to: none more."""
        return batch, columns

    def warm_up(self, samplers: Sequence[Sampler], on_capture: Callable[[int, int], None] | None = None) -> None:
        """Do before the first request what can be done: nothing."""

    def prefill(self, prompts: Step, sampler: Sampler) -> None:
        """One pass over prompts, or over a chunk of them."""
        prefill_step(self.model, self.memory, self.state, prompts, sampler)

    def decode(self, batch: int, longest: int, sampler: Sampler) -> Tensor:
        """One token for each of the rows 0..batch-1; returns them (B,)."""
        return decode_step(self.model, self.memory, self.state, batch, longest, sampler)
