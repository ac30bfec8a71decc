"""A drafter of the kind that an `EngineConfig` asks for, and the engine around it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.make_cache import make_cache
from nanoinfer.config import LOOKUP, NGRAM, EngineConfig
from nanoinfer.engine import cpu_sampling
from nanoinfer.engine.sampling import SAMPLERS, Samplers
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model
from nanoinfer.speculate.adaptive import Adaptive
from nanoinfer.speculate.draft_model import DraftModel
from nanoinfer.speculate.drafts import Drafter
from nanoinfer.speculate.engine import SpeculativeEngine
from nanoinfer.speculate.graphs import VerifyGraphRunner
from nanoinfer.speculate.lookup import PromptLookup
from nanoinfer.speculate.ngram import VOCABULARY, NGrams, RepeatsOrNGrams


def engine_and_runner(
    config: EngineConfig, model: GPT2, max_batch: int, max_len: int, max_batched_tokens: int
) -> tuple[Any, Any]:
    """What makes the engine in place of `Engine`, and the runner in place of `GraphRunner`."""
    drafter = make_drafter(config, model, max_batch, max_len, max_batched_tokens)
    adaptive = Adaptive() if config.adaptive_drafts else None
    engine = partial(SpeculativeEngine, drafter=drafter, draft_tokens=config.draft_tokens, adaptive=adaptive)
    return engine, partial(VerifyGraphRunner, draft_tokens=config.draft_tokens)


def make_drafter(config: EngineConfig, model: GPT2, max_batch: int, max_len: int, max_batched_tokens: int) -> Drafter:
    """Who drafts for `model`. ValueError for a draft model of another vocabulary, or one without room."""
    if config.speculate == LOOKUP:
        return PromptLookup(max_batch, max_len, config.draft_tokens, model.device)
    if config.speculate == NGRAM:
        if (ours := model.config.vocab_size) != VOCABULARY:
            raise ValueError(f"speculate {NGRAM!r} drafts for GPT-2's vocabulary of {VOCABULARY} tokens, not {ours}")
        return RepeatsOrNGrams(NGrams.load())
    draft: GPT2 | str | Path = config.speculate  # type: ignore[assignment]
    if not isinstance(draft, str | Path | GPT2):
        raise ValueError(f"speculate must be {LOOKUP!r}, {NGRAM!r}, a model, or None, not {draft!r}")
    if not isinstance(draft, GPT2):
        draft = load_model(draft, model.device, model.dtype, seed=config.seed)
    ours, theirs = model.config.vocab_size, draft.config.vocab_size
    if ours != theirs:
        raise ValueError(f"a draft model must have the model's vocabulary of {ours} tokens, not {theirs}")
    if draft.device != model.device:
        raise ValueError(f"a draft model must be on the model's device, {model.device}, not {draft.device}")
    max_len = min(max_len, draft.config.n_positions)
    cache = make_cache(EngineConfig(engine="dense"), draft, max_batch, max_len, max_batched_tokens)
    samplers = SAMPLERS if model.device.type == "cuda" else Samplers(filtered=cpu_sampling.sample_filtered)
    return DraftModel(draft, cast(DenseCache, cache), max_batch, samplers, max_batched_tokens)
