"""A cache of the right kind and size for what is asked, by the engine's name.

The engines without graphs size their cache for each call: as large as the requests can use, and no larger. Those with
graphs size it once, for the most that may ever be asked: captured addresses stay. What does not fit is refused by its
size, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.naive import Naive
from nanoinfer.cache.paged import PagedCache
from nanoinfer.devices import free_memory
from nanoinfer.engine.engine import RowMemory
from nanoinfer.model.config import ModelConfig

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
        if self.engine.startswith("dense"):
            return self._dense(rows, longest)
        needed = [self._blocks_of(length) for length in lengths]  # at each request's longest
        paged = self._paged(rows, longest, sum(sorted(needed)[-rows:]))
        self.check(paged, lengths)
        return paged

    def make_once(self, max_len: int) -> DenseCache | PagedCache:
        """A memory for `max_batch` rows of up to `max_len` tokens. ValueError if it cannot fit."""
        if self.engine.startswith("dense"):
            return self._dense(self.max_batch, max_len)
        return self._paged(self.max_batch, max_len, self.max_batch * self._blocks_of(max_len))

    def check(self, memory: RowMemory, lengths: Sequence[int]) -> None:
        """ValueError for a request that could never fit, whatever else is running."""
        if not isinstance(memory, PagedCache):
            return
        blocks = memory.allocator.blocks - 1
        for index, length in enumerate(lengths):
            if self._blocks_of(length) > blocks:
                raise ValueError(
                    f"prompt {index} may grow to {length} tokens, which {blocks} blocks of {self.block_size} "
                    "cannot hold: lower its max_tokens, or raise kv_blocks"
                )

    def _dense(self, rows: int, longest: int) -> DenseCache:
        self._check_room(f"a cache of {rows} rows and {longest} tokens", "lower max_batch, max_tokens or max_len",
                         DenseCache.bytes(self.config, rows, longest, self.dtype))  # fmt: skip
        return DenseCache(self.config, rows, longest, self.device, self.dtype)

    def _paged(self, rows: int, longest: int, usable: int) -> PagedCache:
        """A pool of kv_blocks, or of as many blocks as are usable and affordable, and the null block."""
        one = PagedCache.bytes(self.config, 1, self.block_size, self.dtype)
        free = free_memory(self.device)
        affordable = usable if free is None else int(free * POOL_SHARE) // one
        blocks = 1 + (self.kv_blocks or max(1, min(usable, affordable)))
        self._check_room(f"a pool of {blocks - 1} blocks", "lower kv_blocks", blocks * one)
        return PagedCache(self.config, rows, longest, blocks, self.block_size, self.device, self.dtype)

    def _check_room(self, what: str, advice: str, needed: int) -> None:
        free = free_memory(self.device)
        if free is not None and needed > free:
            raise ValueError(
                f"{what} takes {needed / 1e9:.1f} GB, but {self.device} has {free / 1e9:.1f} GB free: {advice}"
            )

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
