"""A drafter of the kind that an `EngineConfig` asks for."""

from __future__ import annotations

from pathlib import Path

from nanoinfer.cache.captured import CapturedDense
from nanoinfer.config import LOOKUP, NGRAM, EngineConfig
from nanoinfer.engine import cpu_sampling
from nanoinfer.engine.samplers import SAMPLERS
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model
from nanoinfer.speculate.draft_model import DraftModel
from nanoinfer.speculate.drafts import Drafter
from nanoinfer.speculate.lookup import PromptLookup
from nanoinfer.speculate.ngram import VOCABULARY, NGrams, RepeatsOrNGrams


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
    cache = CapturedDense(draft.config, max_batch, max_len, draft.device, draft.dtype)
    samplers = SAMPLERS if model.device.type == "cuda" else cpu_sampling.SAMPLERS
    return DraftModel(draft, cache, max_batch, samplers, max_batched_tokens)
