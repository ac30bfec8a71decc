"""Chapter 7's engines: chapter 6's, with drafts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, cast

from nanoinfer.cache.captured import CapturedDense
from nanoinfer.engine import cpu_sampling
from nanoinfer.engine.samplers import SAMPLERS
from nanoinfer.engine.stats import Stats
from nanoinfer.engines.kernels import KernelMaker
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model
from nanoinfer.speculate.draft_model import DraftModel
from nanoinfer.speculate.drafts import LOOKUP, NGRAM, Drafter
from nanoinfer.speculate.engine import DraftEngine
from nanoinfer.speculate.lookup import PromptLookup
from nanoinfer.speculate.ngram import VOCABULARY, NGrams, RepeatsOrNGrams
from nanoinfer.speculate.pays import Pays
from nanoinfer.speculate.verify import VerifiedPaged


class DraftMaker(KernelMaker):
    """A `KernelMaker` of engines whose sequences bring drafts.

    speculate: who drafts: "lookup", "ngram" or a model; None: nobody. draft_tokens: of a sequence in a step at most.
    adaptive_drafts: whether sequences bring fewer where that is faster. seed: of a draft model's random weights.
    """

    def __init__(
        self, *args: Any, speculate: str | Path | GPT2 | None = None, draft_tokens: int = 4,
        adaptive_drafts: bool = True, seed: int = 0, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **settings)
        self.speculate, self.draft_tokens, self.adaptive, self.seed = speculate, draft_tokens, adaptive_drafts, seed
        if speculate is not None:
            self.keep_state(DraftEngine, "drafts")
            self.captured_pages = VerifiedPaged

    def keep_state(self, kind: Any, what: str) -> None:
        """Keep the state of sequences on the device in every engine. Naive keeps nothing: it is made as dense is."""
        self.device_state, self.on_device = True, kind
        if self.kind == "naive":
            self.kind = "dense"
            warnings.warn(f"engine naive runs as engine dense does: {what} need a cache", RuntimeWarning, stacklevel=6)

    def make(self) -> Any:
        engine = super().make()
        if not self.graphs:
            engine.stats = Stats()  # nothing is recorded, and nothing counted of it
        return engine

    def recording(self) -> dict[str, Any]:
        return super().recording() if self.graphs else {"recorder": None, "max_rows": 0, "lag": 0}

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        if self.speculate is not None:
            adaptive = Pays() if self.adaptive else None
            settings |= {"drafter": self.drafter(), "draft_tokens": self.draft_tokens, "adaptive": adaptive}
        return settings

    def drafter(self) -> Drafter:
        """Who drafts. ValueError for a draft model of another vocabulary, or one without room."""
        model, ours, draft = self.model, self.model.config.vocab_size, cast(Any, self.speculate)
        if draft == LOOKUP:
            return PromptLookup(self.max_batch, self.max_len, self.draft_tokens, model.device)
        if draft == NGRAM:
            if ours != VOCABULARY:
                what = f"speculate {NGRAM!r} drafts for GPT-2's vocabulary"
                raise ValueError(f"{what} of {VOCABULARY} tokens, not {ours}")
            return RepeatsOrNGrams(NGrams.load())
        if not isinstance(draft, GPT2):
            draft = load_model(draft, model.device, model.dtype, seed=self.seed)
        if ours != (theirs := draft.config.vocab_size):
            raise ValueError(f"a draft model must have the model's vocabulary of {ours} tokens, not {theirs}")
        if draft.device != model.device:
            raise ValueError(f"a draft model must be on the model's device, {model.device}, not {draft.device}")
        max_len = min(self.max_len, draft.config.n_positions)
        cache = CapturedDense(draft.config, self.max_batch, max_len, draft.device, draft.dtype)
        samplers = SAMPLERS if self.on_gpu else cpu_sampling.SAMPLERS
        return DraftModel(draft, cache, self.max_batch, samplers, self.budget)
