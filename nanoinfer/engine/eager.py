"""The runner that calls a step operation by operation. Chapter 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.state import BatchState, upload
from nanoinfer.engine.step import Model, decode_step, prefill_step
from nanoinfer.model.batch import Chunk, Layout, pack, unpack
from nanoinfer.model.gpt2 import GPT2, Cache


class EagerRunner:
    """Runs every step by calling it."""

    def __init__(self, model: GPT2, cache: Cache, state: BatchState) -> None:
        self.model, self.cache, self.state = model, cache, state

    def prefill(
        self, going: Sequence[int], chunks: Sequence[Chunk], sampler: Sampler, model: Model | None = None
    ) -> Tensor:
        """One pass over the newest token of each of the rows `going`, and over these chunks.

        Returns the next token (K,) of each of these rows, then of each chunk that is complete. model: in place of the
        runner's.
        """
        layout = Layout.of(going, chunks, self.model.config.n_positions)
        packed = upload(pack(going, chunks, layout, self.state.dummy), torch.int64, self.state.token.device)
        return prefill_step(model or self.model, self.cache, self.state, unpack(packed, layout), sampler)

    def decode(self, batch: int, longest: int, sampler: Sampler) -> Tensor:
        """One token for each of the rows 0..batch-1; returns them (B,)."""
        return decode_step(self.model, self.cache, self.state, batch, longest, sampler)
