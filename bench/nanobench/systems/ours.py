"""The engines of the book, through the same `LLM` that users have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanobench.systems.base import Limits
from nanoinfer import LLM, Completion, SamplingParams
from nanoinfer.model.gpt2 import GPT2


class Ours:
    """One of nanoinfer's engines; `engine` is its name unless given, and `options` go to the LLM."""

    def __init__(self, name: str, model: GPT2, limits: Limits, engine: str | None = None, **options: Any) -> None:
        self.name, self._ahead = name, engine is None  # a variant captures what it needs, when it needs it
        threads = torch.get_num_threads()  # as many as the other systems get
        sizes: dict[str, Any] = {"max_batch": limits.max_batch, "max_len": limits.max_len}
        self.llm = LLM(model, engine=engine or name, threads=threads, **sizes, **options)

    def warm_up(self) -> None:
        """Capture the whole ladder, as a server does before it is ready; without graphs there is nothing to do."""
        if self._ahead:
            self.llm.warm_up()

    @property
    def stats(self) -> Any:
        """The engine's own counters."""
        return self.llm.stats

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        return [list(c.token_ids) for c in self._generate(prompts, new_tokens)]

    def step_times(self, prompts: Tensor, new_tokens: int) -> list[float]:
        return list(self._generate(prompts, new_tokens)[0].metrics.itl_s)

    def _generate(self, prompts: Tensor, new_tokens: int) -> list[Completion]:
        return self.llm.generate(
            prompts.tolist(), SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        )
