"""Chapter 4's engines."""

from __future__ import annotations

from typing import Any

from nanoinfer.cache.captured import CapturedDense, CapturedPaged
from nanoinfer.engine.graphs import CudaRecorder, GraphEngine
from nanoinfer.engines.paged import BLOCK
from nanoinfer.model.gpt2 import GPT2


def graph_engine(model: GPT2, cache: Any, max_batch: int) -> GraphEngine:
    """Make an engine that records its steps where there is a GPU."""
    recorder = CudaRecorder(model.device) if model.device.type == "cuda" else None
    return GraphEngine(model, cache, max_batch, recorder=recorder, max_rows=max_batch)


def dense_graph(model: GPT2, max_batch: int, max_len: int) -> GraphEngine:
    """Make it over chapter 2's cache."""
    cache = CapturedDense(model.config, max_batch, max_len, model.device, model.dtype)
    return graph_engine(model, cache, max_batch)


def paged_graph(model: GPT2, max_batch: int, max_len: int) -> GraphEngine:
    """Make it over chapter 3's cache, with a pool that holds all the longest texts."""
    blocks = max_batch * -(-max_len // BLOCK)
    cache = CapturedPaged(model.config, max_batch, max_len, blocks, BLOCK, model.device, model.dtype)
    return graph_engine(model, cache, max_batch)
