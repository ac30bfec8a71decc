"""The engines by name: each a recipe of parts, put together in one place."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

from nanoinfer.cache.captured import CapturedDense
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.none import NoCache
from nanoinfer.cache.paged import PagedCache
from nanoinfer.cache.ragged import CapturedRagged, RaggedPaged
from nanoinfer.capacity import affordable_rows, free_memory
from nanoinfer.config import MAX_BATCH, EngineConfig
from nanoinfer.engine import cpu_sampling
from nanoinfer.engine.choice import ChoosingEngine
from nanoinfer.engine.graph_stats import GraphStats
from nanoinfer.engine.graphs import CudaRecorder
from nanoinfer.engine.penalties import AllSamplers, PenaltySampler
from nanoinfer.engine.queue import QueueEngine
from nanoinfer.engine.quick import QuickChoice
from nanoinfer.engine.samplers import SAMPLERS, Samplers
from nanoinfer.engine.scores import DeviceScores, PlainScores
from nanoinfer.engine.stats import Stats
from nanoinfer.engines.graphs import fused
from nanoinfer.kernels.available import has_triton
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.speculate.engine import DraftEngine
from nanoinfer.speculate.pays import Pays
from nanoinfer.speculate.verify import VerifiedPaged

DENSE_SHARE = 0.5  # of free memory that dense rows may take where nobody says how many
POOL_SHARE = 0.9  # of the memory that a step leaves free
LAG = 2  # steps that the host is behind a device that replays graphs


class EagerQueue(PlainScores, QuickChoice):
    """Chapter 5 over the engine of chapters 1 to 3."""


class EagerDrafts(DraftEngine):
    """Chapter 7, where nothing is recorded."""

    Stats = Stats


class GraphQueue(DeviceScores, ChoosingEngine):
    """Chapters 5 and 6 over that of chapter 4."""

    Stats = GraphStats


class GraphDrafts(DraftEngine):
    """Chapter 7 over all of that."""

    Stats = GraphStats


def make_engine(
    config: EngineConfig, model: GPT2, max_batch: int, max_len: int, budget: int, rank: Any = None
) -> QueueEngine:
    """The engine of the config's recipe, over a cache that stays where it is. ValueError if it cannot fit.

    rank: the `Rank` whose engine it is to be, where there are several. These keep their state on the device in every
    recipe, and so do engines with drafts.
    """
    on_gpu, graphs = model.device.type == "cuda", config.recipe.launch == "graph"
    on_device = graphs or rank is not None or config.speculate is not None
    least: Callable[[int], int] = rank.least if rank else int
    settings = drafting(config, model, max_batch, max_len, budget)  # ahead of the cache, which may take what is left
    cache = make_cache(config, model, max_batch, max_len, budget, on_device, least)
    settings |= {
        "budget": budget,
        "chunk": config.prefill_chunk,
        "mixed": config.recipe.cache == "paged" and on_gpu,  # elsewhere attention pads, and mixed steps the most
    }
    if config.recipe.cache == "naive":  # with each piece of a prompt, all before it would be read again
        settings |= {"budget": max_batch * max_len, "chunk": None}
    if not on_device:
        return EagerQueue(model, cache, max_batch, **settings)
    samplers = SAMPLERS if on_gpu or graphs else SAMPLERS._replace(filtered=cpu_sampling.sample_filtered)
    if graphs:
        settings |= recording(config, model, max_batch, least)
        if uses_kernels(config, model):
            model, samplers = with_kernels(config, model, rank.ops if rank else None)
    else:
        settings |= {"recorder": None, "max_rows": 0, "lag": 0}
    if rank:
        samplers = rank.samplers(samplers, model, max_batch)
        settings |= {"samplers": samplers, "counts": GraphStats if graphs else Stats}
        made: QueueEngine = rank.engine(model, cache, max_batch, **settings)
        return made
    scoring = PenaltySampler(max_batch, model.config.vocab_size, model.device, samplers.filtered)
    kind = GraphQueue if config.speculate is None else GraphDrafts if graphs else EagerDrafts
    return kind(model, cache, max_batch, samplers=AllSamplers(*samplers, scoring), **settings)


def drafting(config: EngineConfig, model: GPT2, max_batch: int, max_len: int, budget: int) -> dict[str, Any]:
    """Who drafts, how much and by which rule; nothing where nobody does."""
    if config.speculate is None:
        return {}
    from nanoinfer.speculate.make_drafter import make_drafter

    drafter = make_drafter(config, model, max_batch, max_len, budget)
    adaptive = Pays() if config.adaptive_drafts else None
    return {"drafter": drafter, "draft_tokens": config.draft_tokens, "adaptive": adaptive}


def recording(config: EngineConfig, model: GPT2, max_batch: int, least: Callable[[int], int]) -> dict[str, Any]:
    """What a `GraphQueue` is told of graphs: whether and up to how many rows steps are recorded, and in which ways.

    least: as for `make_cache`.
    """
    rows = least(affordable_rows(model)) if config.max_graph_batch is None else config.max_graph_batch
    rows = min(max_batch, rows)
    settings: dict[str, Any] = {"recorder": None, "max_rows": rows, "lag": 0}
    if model.device.type != "cuda":
        settings["why_not"] = why_not = "a CPU records no steps"
        what = f"engine {config.engine} runs as engine {config.recipe.cache} does"
        warnings.warn(f"{what}: {why_not}", RuntimeWarning, stacklevel=5)
    elif os.environ.get("NANOINFER_GRAPHS") != "0":
        settings |= {"recorder": CudaRecorder(model.device), "lag": LAG if rows else 0}
        if config.recipe.forward != "ops" and uses_kernels(config, model):
            if config.recipe.forward == "persistent":
                from nanoinfer.labs.one_kernel.persistent import persistent_forwards as forwards
            else:
                from nanoinfer.kernels.streamed import fused_forwards as forwards
            settings |= {"forwards": forwards, "pinned": config.pinned}
    return settings


def uses_kernels(config: EngineConfig, model: GPT2) -> bool:
    """Whether an engine with graphs computes with chapter 4's fused kernels."""
    return config.fused or (config.fused is None and model.device.type == "cuda" and has_triton())


def with_kernels(config: EngineConfig, model: GPT2, reduced: Callable[[Any], Any] | None) -> tuple[GPT2, Samplers]:
    """As `fused`. reduced: makes, of operations, those that sum over ranks; None where there is one rank."""
    model, samplers = fused(model)
    if reduced:
        model.ops = reduced(model.ops)
    if config.recipe.forward == "persistent":
        from nanoinfer.labs.one_kernel.persistent import unfiltered

        samplers = samplers._replace(greedy=unfiltered, unfiltered=unfiltered)
    return model, samplers


def default_max_batch(config: EngineConfig, model: GPT2, max_len: int) -> int:
    """64 rows, or as many dense ones as half of the free memory holds."""
    free = free_memory(model.device)
    if config.recipe.cache != "dense" or free is None:
        return MAX_BATCH
    row = max_len * model.config.kv_numbers * model.dtype.itemsize
    return max(1, min(MAX_BATCH, int(DENSE_SHARE * free) // row - 1))


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
