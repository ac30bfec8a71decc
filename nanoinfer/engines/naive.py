"""Chapter 1's engine."""

from __future__ import annotations

from nanoinfer.cache.none import NoCache
from nanoinfer.engine.engine import Engine
from nanoinfer.model.gpt2 import GPT2


def naive(model: GPT2, max_batch: int, max_len: int) -> Engine:
    """Make an engine that feeds whole texts at every step."""
    return Engine(model, NoCache(), max_batch)
