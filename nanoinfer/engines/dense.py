"""Chapter 2's engine."""

from __future__ import annotations

from nanoinfer.cache.dense import DenseCache
from nanoinfer.engine.engine import Engine
from nanoinfer.model.gpt2 import GPT2


def dense(model: GPT2, max_batch: int, max_len: int) -> Engine:
    """Make chapter 1's engine over the dense cache."""
    return Engine(model, DenseCache(model.config, max_batch, max_len, model.device, model.dtype), max_batch)
