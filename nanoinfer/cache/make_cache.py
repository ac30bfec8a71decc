"""A cache of the right kind for an engine, sized once for the most that may ever be asked.

Addresses stay, so that steps can be captured, and a pool leaves room for what a step computes. What does not fit is
refused by its size, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable

from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.naive import Naive
from nanoinfer.cache.paged import PagedCache
from nanoinfer.cache.prefix import PrefixBlocks
from nanoinfer.config import MAX_BATCH, EngineConfig
from nanoinfer.devices import free_memory
from nanoinfer.model.gpt2 import GPT2

DENSE_SHARE = 0.5  # of free memory that dense rows may take where nobody says how many
POOL_SHARE = 0.9  # of the memory that a step leaves free


def default_max_batch(config: EngineConfig, model: GPT2, max_len: int) -> int:
    """64 rows, or as many dense ones as half of the free memory holds."""
    free = free_memory(model.device)
    if config.recipe.cache != "dense" or free is None:
        return MAX_BATCH
    row = max_len * model.config.kv_numbers * model.dtype.itemsize
    return max(1, min(MAX_BATCH, int(DENSE_SHARE * free) // row - 1))


def make_cache(
    config: EngineConfig,
    model: GPT2,
    max_batch: int,
    max_len: int,
    max_batched_tokens: int,
    least: Callable[[int], int] = int,
) -> Naive | DenseCache | PagedCache:
    """The cache of an engine of `max_batch` rows of up to `max_len` tokens. ValueError if it cannot fit.

    least: makes of a number of blocks that fit here one that fits wherever a part of the cache is.
    """
    shape, device, dtype = model.config, model.device, model.dtype
    if config.recipe.cache == "naive":
        return Naive(max_batch, max_len, device)
    if config.recipe.cache == "dense":
        needed = DenseCache.bytes(shape, max_batch, max_len, dtype)
        _check_room(model, f"a cache of {max_batch} rows of {max_len} tokens", "lower max_batch or max_len", needed)
        return DenseCache(shape, max_batch, max_len, device, dtype)
    one, free = PagedCache.bytes(shape, 1, config.block_size, dtype), free_memory(device)
    usable = max_batch * -(-max_len // config.block_size)
    if free is not None:
        # Of a step: the widest sublayer's tensors a token, and logits a row, twice in float32 where they are filtered.
        logits = (
            max_batch if config.speculate is None else min(max_batch * (1 + config.draft_tokens), max_batched_tokens)
        )
        step = max_batched_tokens * 16 * shape.inner + logits * 12 * shape.padded_vocab
        usable = min(usable, int((free - step) * POOL_SHARE) // one)
    blocks = 1 + (config.kv_blocks or least(max(1, usable)))
    _check_room(model, f"a pool of {blocks - 1} blocks", "lower kv_blocks", blocks * one)
    cache = PagedCache(shape, max_batch, max_len, blocks, config.block_size, device, dtype)
    if config.prefix_caching:
        cache.blocks = PrefixBlocks(blocks, config.block_size, max_batch, identity=repr((shape, dtype)).encode())
    return cache


def _check_room(model: GPT2, what: str, advice: str, needed: int) -> None:
    free = free_memory(model.device)
    if free is not None and needed > free:
        raise ValueError(
            f"{what} takes {needed / 1e9:.1f} GB, but {model.device} has {free / 1e9:.1f} GB free: {advice}"
        )
