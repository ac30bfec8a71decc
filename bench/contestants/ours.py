"""The engines of the book, through the same front door that a user has."""

from __future__ import annotations

from torch import Tensor

from nanoinfer import LLM, SamplingParams
from nanoinfer.model import GPT2


class Ours:
    """One of nanoinfer's engines."""

    def __init__(self, name: str, model: GPT2) -> None:
        self.name = name
        self.llm = LLM(model, engine=name, max_batch=1024)

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        return [list(c.token_ids) for c in self.llm.generate(prompts.tolist(), params)]

    def step_times(self, prompts: Tensor, new_tokens: int) -> list[float]:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        return list(self.llm.generate(prompts.tolist(), params)[0].metrics.itl_s)
