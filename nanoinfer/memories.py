"""A memory of the right kind and size for what is asked: all chapters' memories, by the engine's name.

The engines without graphs size their cache for each call: as large as the requests can use, and no larger. What does
not fit is refused by its size, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nanoinfer.config import ModelConfig
from nanoinfer.dense import DenseCache
from nanoinfer.devices import free_memory
from nanoinfer.engine import RowMemory
from nanoinfer.naive import Naive
from nanoinfer.paged import PagedCache

POOL_SHARE = 0.9  # of free memory that a paged pool may take; the rest is for activations


@dataclass(frozen=True)
class MemorySpec:
    """What kind of memory, for which model: the part of it that requests do not change."""

    engine: str
    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    max_batch: int
    block_size: int
    kv_blocks: int | None

    def make(self, lengths: Sequence[int]) -> RowMemory:
        """A memory for requests of at most these many tokens each, prompt and new ones. ValueError if it cannot fit."""
        rows, longest = min(self.max_batch, len(lengths)), max(lengths)
        if self.engine == "naive":
            return Naive(rows, longest, self.device)
        if self.engine == "dense":
            return self._dense(rows, longest)
        return self._paged(rows, longest, lengths)

    def _dense(self, rows: int, longest: int) -> DenseCache:
        needed, free = DenseCache.bytes(self.config, rows, longest, self.dtype), free_memory(self.device)
        if free is not None and needed > free:
            raise ValueError(
                f"a cache of {rows} rows and {longest} tokens takes {needed / 1e9:.1f} GB, but {self.device} has "
                f"{free / 1e9:.1f} GB free: lower max_batch, max_tokens or max_len"
            )
        return DenseCache(self.config, rows, longest, self.device, self.dtype)

    def _paged(self, rows: int, longest: int, lengths: Sequence[int]) -> PagedCache:
        needed = [-(-length // self.block_size) for length in lengths]  # blocks of each request at its longest
        blocks = self.kv_blocks or min(sum(sorted(needed)[-rows:]), self._affordable_blocks())
        for index, length in enumerate(lengths):
            if needed[index] > blocks:
                raise ValueError(
                    f"prompt {index} may grow to {length} tokens, which {blocks} blocks of {self.block_size} "
                    "cannot hold: lower its max_tokens, or raise kv_blocks"
                )
        with_null = blocks + 1
        return PagedCache(self.config, rows, longest, with_null, self.block_size, self.device, self.dtype)

    def _affordable_blocks(self) -> int:
        free = free_memory(self.device)
        if free is None:
            return 2**31
        return int(free * POOL_SHARE) // PagedCache.bytes(self.config, 1, self.block_size, self.dtype)
