"""The engines by name, with sizes that the memory of their device allows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.paged import PagedCache
from nanoinfer.capacity import affordable_rows, batched_tokens, free_memory
from nanoinfer.config import MAX_BATCH, EngineConfig
from nanoinfer.engine.queue import QueueEngine
from nanoinfer.engine.samplers import Samplers
from nanoinfer.engines.ranks import RankMaker
from nanoinfer.model.gpt2 import GPT2

DENSE_SHARE = 0.5  # of free memory that dense rows may take where nobody says how many
POOL_SHARE = 0.9  # of the memory that a step leaves free
SETTINGS = (
    "prefill_chunk", "block_size", "kv_blocks", "prefix_caching", "preemption", "max_graph_batch", "fused", "pinned",
    "speculate", "draft_tokens", "adaptive_drafts", "seed",
)  # fmt: skip


def make_engine(config: EngineConfig, model: GPT2, max_len: int, rank: Any = None) -> QueueEngine:
    """The engine of the config's name, over a cache that stays where it is. ValueError if it cannot fit.

    rank: the `Rank` whose engine it is to be, where there are several.
    """
    most, fits = config.max_batched_tokens or MAX_BATCH, default_max_batch(config, model, max_len)
    max_batch = config.max_batch or min(most, rank.least(fits) if rank else fits)
    budget = config.max_batched_tokens or max(batched_tokens(model.device), max_batch)
    settings = {name: getattr(config, name) for name in SETTINGS} | {"max_batched_tokens": budget, "rank": rank}
    made: QueueEngine = FittingMaker(config.engine, model, max_batch, max_len, **settings).make()
    return made


class FittingMaker(RankMaker):
    """Makes engines of all chapters, and `persistent`, the lab's, as large as there is room for."""

    def __init__(self, engine: str, *args: Any, **settings: Any) -> None:
        super().__init__("fused" if engine == "persistent" else engine, *args, **settings)
        self.name, self.persistent = engine, engine == "persistent"

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers."""
        return self.rank.least(number) if self.rank else number

    def recording(self) -> dict[str, Any]:
        if os.environ.get("NANOINFER_GRAPHS") == "0":
            self.max_rows = 0
        elif self.graphs and self.max_rows is None:
            self.max_rows = self.least(affordable_rows(self.model))
        settings = super().recording()
        if why_not := settings.get("why_not"):
            what = f"engine {self.name} runs as engine {self.kind} does: {why_not}"
            warnings.warn(what, RuntimeWarning, stacklevel=6)
        return settings

    def forwards(self) -> Callable[..., Any]:
        if not self.persistent:
            return super().forwards()
        from nanoinfer.labs.one_kernel.persistent import persistent_forwards

        return persistent_forwards

    def plain_samplers(self) -> Samplers:
        samplers = super().plain_samplers()
        if not (self.persistent and self.kernels):
            return samplers
        from nanoinfer.labs.one_kernel.persistent import unfiltered

        return samplers._replace(greedy=unfiltered, unfiltered=unfiltered)

    def cache(self) -> Any:
        """As the base's. ValueError where the device has no room for it."""
        model, shape, dtype = self.model, self.model.config, self.model.dtype
        if self.kind == "dense":
            size = DenseCache.bytes(shape, self.max_batch + 1, self.max_len, dtype)
            what = f"a cache of {self.max_batch} rows of {self.max_len} tokens"
            check_room(model, what, "lower max_batch or max_len", size)
        elif self.kind == "paged":
            block = PagedCache.bytes(shape, 1, self.block_size, dtype)
            self.kv_blocks = self.kv_blocks or self.least(max(1, self.usable_blocks(block)))
            check_room(model, f"a pool of {self.kv_blocks} blocks", "lower kv_blocks", (self.kv_blocks + 1) * block)
        return super().cache()

    def usable_blocks(self, block: int) -> int:
        """Blocks, of so many bytes, that there is room for beside a step, and that the rows can use."""
        shape, usable = self.model.config, self.max_batch * -(-self.max_len // self.block_size)
        free = free_memory(self.model.device)
        if free is None:
            return usable
        # Of a step: the widest sublayer's tensors a token, and logits a row, twice in float32 where they are filtered.
        drafts = self.draft_tokens if self.speculate is not None else 0
        logits = min(self.max_batch * (1 + drafts), self.budget) if drafts else self.max_batch
        step = self.budget * 16 * shape.inner + logits * 12 * shape.padded_vocab
        if self.by_kernels and self.kernels:  # which copies the blocks' matrices
            step += shape.n_layer * shape.n_embd * (4 * shape.n_embd + 2 * shape.inner) * self.model.dtype.itemsize
        return min(usable, int((free - step) * POOL_SHARE) // block)


def default_max_batch(config: EngineConfig, model: GPT2, max_len: int) -> int:
    """64 rows, or as many dense ones as half of the free memory holds."""
    free = free_memory(model.device)
    if config.recipe.cache == "paged" or free is None:
        return MAX_BATCH
    row = max_len * model.config.kv_numbers * model.dtype.itemsize
    return max(1, min(MAX_BATCH, int(DENSE_SHARE * free) // row - 1))


def check_room(model: GPT2, what: str, advice: str, needed: int) -> None:
    """ValueError where the device has less free memory."""
    free = free_memory(model.device)
    if free is not None and needed > free:
        raise ValueError(
            f"{what} takes {needed / 1e9:.1f} GB, but {model.device} has {free / 1e9:.1f} GB free: {advice}"
        )
