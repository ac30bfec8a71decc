"""Chapter 4's engines."""

from __future__ import annotations

from copy import copy
from typing import Any

from nanoinfer.cache.captured import CapturedDense, CapturedPaged
from nanoinfer.engine.graphs import CudaRecorder, GraphEngine
from nanoinfer.engine.samplers import SAMPLERS, Samplers
from nanoinfer.engines.paged import BLOCK
from nanoinfer.kernels.available import has_triton
from nanoinfer.model.gpt2 import GPT2


def graph_engine(model: GPT2, cache: Any, max_batch: int) -> GraphEngine:
    """Make an engine that records its steps where there is a GPU, and computes them with fewer kernels."""
    if model.device.type != "cuda":
        return GraphEngine(model, cache, max_batch, recorder=None, max_rows=max_batch, why_not="a CPU records no steps")
    model, samplers = fused(model) if has_triton() else (model, SAMPLERS)
    return GraphEngine(
        model, cache, max_batch, recorder=CudaRecorder(model.device), max_rows=max_batch, samplers=samplers
    )


def fused(model: GPT2) -> tuple[GPT2, Samplers]:
    """The same model with fused operations, and samplers that are one kernel."""
    from nanoinfer.kernels.fused import FusedOps
    from nanoinfer.kernels.sampling import sample

    model = copy(model)  # the same weights
    model.ops = FusedOps()
    return model, Samplers(sample, sample, sample)


def dense_graph(model: GPT2, max_batch: int, max_len: int) -> GraphEngine:
    """Make it over chapter 2's cache."""
    return graph_engine(model, CapturedDense(model.config, max_batch, max_len, model.device, model.dtype), max_batch)


def paged_graph(model: GPT2, max_batch: int, max_len: int) -> GraphEngine:
    """Make it over chapter 3's cache, with a pool that holds all the longest texts."""
    blocks = max_batch * -(-max_len // BLOCK)
    cache = CapturedPaged(model.config, max_batch, max_len, blocks, BLOCK, model.device, model.dtype)
    return graph_engine(model, cache, max_batch)
