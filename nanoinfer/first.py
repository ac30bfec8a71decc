"""The front door of a rung: text in, completions out, one call at a time. Chapter 1.

The whole package has a larger one, `nanoinfer.llm`, for many callers at once.
"""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from nanoinfer.chapters import ENGINES
from nanoinfer.devices import choose_device, choose_dtype
from nanoinfer.engine.engine import Engine, Sequence
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model
from nanoinfer.records import Completion, SamplingParams
from nanoinfer.text.prompts import RequestMaker


class LLM:
    """A GPT-2 that continues prompts.

    model, revision: as `load_model` takes them. engine: one of `ENGINES`; None takes the last. max_batch: sequences
    that run at once. max_len: context in tokens, prompt and new ones together; None takes the model's own. seed: of the
    seeds of prompts that bring none. ValueError, one sentence, for what makes no sense.
    """

    Maker: Any = RequestMaker

    def __init__(
        self, model: str | Path = "small", engine: str | None = None, *, max_batch: int = 8, max_len: int | None = None,
        seed: int = 0, device: str | None = None, dtype: str | None = None, revision: str | None = None,
    ) -> None:  # fmt: skip
        engine = engine or list(ENGINES)[-1]
        if engine not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}")
        where = choose_device(device)
        self.model = self.load(model, where, choose_dtype(dtype, where), seed=seed, revision=revision)
        self.maker = self.Maker.of(self.model.config, max_len, seed)
        self.tokenizer, self.max_len = self.maker.tokenizer, self.maker.max_len
        self.engine: Engine = self.make(engine, max_batch)

    def load(self, model: str | Path, *where: Any, **settings: Any) -> GPT2:
        """The model, as `load_model` loads it."""
        return load_model(model, *where, **settings)

    def make(self, engine: str, max_batch: int) -> Any:
        """The engine of that name."""
        module, name = ENGINES[engine].split(":")
        return getattr(import_module(module), name)(self.model, max_batch, self.max_len)

    def generate(self, prompts: Any, params: SamplingParams | list[SamplingParams] | None = None) -> list[Completion]:
        """Continue one prompt or several: text or token ids, or a list of these. Returns a list in their order.

        params: one for all, one a prompt, or None for the defaults. ValueError for a bad prompt, before anything is
        computed.
        """
        requests = self.maker.requests(prompts, params)
        done = [self.completion(s) for step in self.engine.generate(requests) for s in step if s.finish_reason]
        return sorted(done, key=attrgetter("index"))

    def completion(self, s: Sequence) -> Completion:
        """The record of a sequence that has ended."""
        assert s.finish_reason
        request, ids = s.request, s.tokens[len(s.request.prompt_token_ids) :]
        if s.text:
            s.text.finish()
        text = s.text.text if s.text else self.tokenizer.decode(ids[:-1] if ids[-1] in request.stop_ids else ids)
        return Completion(request.index, request.prompt_token_ids, tuple(ids), text, s.finish_reason, request.seed)
