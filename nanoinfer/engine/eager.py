"""The runner that calls a step operation by operation. Chapter 1."""

from __future__ import annotations

from torch import Tensor

from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import decode_step, prefill_step
from nanoinfer.model.batch import Step
from nanoinfer.model.gpt2 import GPT2, Memory


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
