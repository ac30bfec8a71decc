"""Chapter 3's engine."""

from __future__ import annotations

from nanoinfer.cache.paged import PagedCache
from nanoinfer.engine.engine import Engine
from nanoinfer.model.gpt2 import GPT2

BLOCK = 16  # tokens


def paged(model: GPT2, max_batch: int, max_len: int) -> Engine:
    """Make chapter 1's engine over pages, with a pool that holds all the longest texts."""
    blocks = max_batch * -(-max_len // BLOCK)
    return Engine(
        model, PagedCache(model.config, max_batch, max_len, blocks, BLOCK, model.device, model.dtype), max_batch
    )
