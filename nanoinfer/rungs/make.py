"""The engines by name: each a recipe of parts, put together in one place."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from copy import copy
from typing import Any

from nanoinfer.config import MAX_BATCH, EngineConfig
from nanoinfer.devices import free_memory, has_triton
from nanoinfer.engine.graph_stats import GraphStats
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.sampling import SAMPLERS, Samplers
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.rungs.captured import CapturedDense
from nanoinfer.rungs.choice import ChoosingEngine
from nanoinfer.rungs.cpu import QuickChoice
from nanoinfer.rungs.dense import DenseCache
from nanoinfer.rungs.graphs import CudaRecorder, affordable_rows
from nanoinfer.rungs.none import NoCache
from nanoinfer.rungs.paged import PagedCache
from nanoinfer.rungs.pays import Pays
from nanoinfer.rungs.queue import QueueEngine
from nanoinfer.rungs.ragged import CapturedRagged, RaggedPaged
from nanoinfer.rungs.scores import DeviceScores, PlainScores
from nanoinfer.rungs.verify import PlainDrafts
from nanoinfer.rungs.verify_graphs import GraphDrafts, VerifiedPaged

DENSE_SHARE = 0.5  # of free memory that dense slots may take where nobody says how many
POOL_SHARE = 0.9  # of the memory that a step leaves free
LAG = 2  # steps that the host is behind a device that replays graphs


class EagerQueue(PlainScores, QuickChoice):
    """Chapter 5 over the engine of chapters 1 to 3."""


class GraphQueue(DeviceScores, ChoosingEngine):
    """Chapters 5 and 6 over that of chapter 4."""

    Stats = GraphStats


class DraftQueue(GraphDrafts):
    """Chapter 7 over all of that."""

    Stats = GraphStats


def make_engine(config: EngineConfig, model: GPT2, max_batch: int, max_len: int, budget: int) -> QueueEngine:
    """The engine of the config's recipe, over a cache that stays where it is. ValueError if it cannot fit."""
    on_gpu, captured = model.device.type == "cuda", config.recipe.launch == "graph"
    drafts = drafting(config, model, max_batch, max_len, budget)  # ahead of the cache, which may take what is left
    cache = make_cache(config, model, max_batch, max_len, budget, captured)
    queue: dict[str, Any] = {
        "budget": budget,
        "chunk": config.prefill_chunk,
        "mixed": config.recipe.cache == "paged" and on_gpu,  # elsewhere attention pads, and mixed steps the most
    }
    if config.recipe.cache == "naive":  # it feeds whole texts at every step, so a chunk would never end its prompt
        queue |= {"budget": max_batch * max_len, "chunk": None}
    if captured:
        return graph_queue(config, model, cache, max_batch, queue | drafts)
    return (PlainDrafts if drafts else EagerQueue)(model, cache, max_batch, **queue, **drafts)


def drafting(config: EngineConfig, model: GPT2, max_batch: int, max_len: int, budget: int) -> dict[str, Any]:
    """Who drafts, how much and by which rule; nothing where nobody does."""
    if config.speculate is None:
        return {}
    from nanoinfer.rungs.make_drafter import make_drafter

    drafter = make_drafter(config, model, max_batch, max_len, budget)
    adaptive = Pays() if config.adaptive_drafts else None
    return {"drafter": drafter, "draft_tokens": config.draft_tokens, "adaptive": adaptive}


def graph_queue(config: EngineConfig, model: GPT2, cache: Any, max_batch: int, queue: dict[str, Any]) -> QueueEngine:
    """An engine whose steps are recorded, where there is a GPU, with the kernels that it is to use."""
    on_gpu = model.device.type == "cuda"
    recorder, why_not, samplers, more = None, None, SAMPLERS, {}
    rows = affordable_rows(model) if config.max_graph_batch is None else config.max_graph_batch
    rows = min(max_batch, rows)
    if on_gpu and os.environ.get("NANOINFER_GRAPHS") != "0":
        recorder = CudaRecorder(model.device)
    elif not on_gpu:
        why_not = "a CPU records no steps"
        what = f"engine {config.engine} runs as engine {config.recipe.cache} does"
        warnings.warn(f"{what}: {why_not}", RuntimeWarning, stacklevel=5)
    if kernels := config.fused or (config.fused is None and on_gpu and has_triton()):
        from nanoinfer.kernels import sampling as sampling_kernels
        from nanoinfer.kernels.fused import FusedOps

        model = copy(model)  # the same weights
        model.ops = FusedOps()
        plain = sampling_kernels.unfiltered if config.recipe.forward == "persistent" else sampling_kernels.sample
        samplers = Samplers(plain, plain, sampling_kernels.sample)
    if recorder and kernels and config.recipe.forward != "ops":
        from nanoinfer.kernels.persistent import forwards_of

        more = {"forwards": forwards_of(config.recipe.forward), "pinned": config.pinned}
    scoring = PenaltySampler(max_batch, model.config.vocab_size, model.device, samplers.filtered)
    kind = DraftQueue if config.speculate is not None else GraphQueue
    return kind(
        model, cache, max_batch, recorder=recorder, why_not=why_not, max_rows=rows, lag=LAG if recorder and rows else 0,
        samplers=samplers._replace(scoring=scoring), **queue, **more,
    )  # fmt: skip


def default_max_batch(config: EngineConfig, model: GPT2, max_len: int) -> int:
    """64 slots, or as many dense ones as half of the free memory holds."""
    free = free_memory(model.device)
    if config.recipe.cache != "dense" or free is None:
        return MAX_BATCH
    slot = max_len * model.config.kv_numbers * model.dtype.itemsize
    return max(1, min(MAX_BATCH, int(DENSE_SHARE * free) // slot - 1))


def make_cache(
    config: EngineConfig, model: GPT2, max_batch: int, max_len: int, budget: int, captured: bool,
    least: Callable[[int], int] = int,
) -> Any:  # fmt: skip
    """A cache of the recipe's kind, sized once for the most that may ever be asked: addresses stay.

    least: makes of a number of blocks that fit here one that fits wherever a part of the cache is.
    """
    shape, kind = model.config, (model.device, model.dtype)
    free = free_memory(model.device)
    if config.recipe.cache == "naive":
        return NoCache()
    if config.recipe.cache == "dense":
        what = f"a cache of {max_batch} rows of {max_len} tokens"
        check_room(
            model, what, "lower max_batch or max_len", DenseCache.bytes(shape, max_batch + 1, max_len, model.dtype)
        )
        return (CapturedDense if captured else DenseCache)(shape, max_batch, max_len, *kind)
    size = config.block_size
    one = PagedCache.bytes(shape, 1, size, model.dtype)
    usable = max_batch * -(-max_len // size)
    if free is not None:
        # Of a step: the widest sublayer's tensors a token, and logits a row, twice in float32 where they are filtered.
        logits = max_batch if config.speculate is None else min(max_batch * (1 + config.draft_tokens), budget)
        step = budget * 16 * shape.inner + logits * 12 * shape.padded_vocab
        usable = min(usable, int((free - step) * POOL_SHARE) // one)
    blocks = config.kv_blocks or least(max(1, usable))
    check_room(model, f"a pool of {blocks} blocks", "lower kv_blocks", (blocks + 1) * one)
    kinds = VerifiedPaged if captured and config.speculate is not None else CapturedRagged if captured else RaggedPaged
    identity = repr((shape, model.dtype)).encode() if config.prefix_caching else None
    return kinds(shape, max_batch, max_len, blocks, size, *kind, preemption=bool(config.preemption), identity=identity)


def check_room(model: GPT2, what: str, advice: str, needed: int) -> None:
    """ValueError where the device has less free memory."""
    free = free_memory(model.device)
    if free is not None and needed > free:
        raise ValueError(
            f"{what} takes {needed / 1e9:.1f} GB, but {model.device} has {free / 1e9:.1f} GB free: {advice}"
        )
