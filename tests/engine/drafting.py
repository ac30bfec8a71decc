"""What the tests of drafts share: requests of all kinds, drafters that are as right as one wants, and mutants."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.queue import Queued
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Completion, Request
from tests.engine.fake_graphed import graph_llm

FREE = {"ignore_eos": True}
MIXED = [
    SamplingParams(temperature=0, seed=1, max_tokens=30, **FREE),
    SamplingParams(max_tokens=40, seed=3, **FREE),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=5, max_tokens=200, **FREE),  # up to the context's end
    SamplingParams(temperature=0, seed=1, max_tokens=1, **FREE),
    SamplingParams(temperature=1.3, top_p=0.8, seed=2**40, max_tokens=90, **FREE),
]
SCORED = [
    SamplingParams(temperature=0, seed=1, max_tokens=40, frequency_penalty=2.0, logprobs=3, **FREE),
    SamplingParams(temperature=0, seed=1, max_tokens=40, frequency_penalty=-2.0, logprobs=0, **FREE),
    SamplingParams(temperature=0.9, seed=4, max_tokens=30, presence_penalty=1.5, frequency_penalty=0.3, **FREE),
    SamplingParams(temperature=0, seed=1, max_tokens=20, **FREE),
    SamplingParams(temperature=0.9, seed=9, max_tokens=30, top_k=30, logprobs=2, prompt_logprobs=1, **FREE),
]
LENGTHS = [4, 9, 30, 2, 60]


class Scripted:
    """Drafts of any length, each token right with probability `right`; too long ones too.

    texts: by (prompt, seed), what the row will choose.
    """

    def __init__(self, texts: dict[Any, Sequence[int]], random: Random, right: float = 0.8, vocab: int = 211) -> None:
        self.texts, self.random, self.right, self.vocab = texts, random, right, vocab

    def draft(self, rows: Sequence[Queued], limits: Sequence[int]) -> list[list[int]]:
        return [self.one(row, limit + self.random.choice([0, 0, 3])) for row, limit in zip(rows, limits, strict=True)]

    def one(self, row: Queued, most: int) -> list[int]:
        text = self.texts[name_of(row.request)][len(row.token_ids) :]
        count = self.random.randint(0, most)
        guesses = [*text[:count], *[0] * (count - len(text))]
        return [each if self.random.random() < self.right else self.random.randrange(self.vocab) for each in guesses]


class Right(Scripted):
    """As long as may be, and never wrong."""

    def one(self, row: Queued, most: int) -> list[int]:
        return list(self.texts[name_of(row.request)][len(row.token_ids) :][:most])


def name_of(each: Request | Completion) -> tuple[Any, ...]:
    return each.prompt_token_ids, each.seed


def texts_of(done: Sequence[Completion]) -> dict[Any, Sequence[int]]:
    return {name_of(completion): completion.token_ids for completion in done}


def seen(done: Sequence[Completion]) -> list[Any]:
    return [(c.token_ids, c.text, c.finish_reason) for c in done]


def begun_with(llm: LLM, drafter: Any) -> LLM:
    core: Any = llm.core
    core.begin_with(drafter)
    return llm


def speculating(model: GPT2, drafter: Any, draft_tokens: int = 6, **config: Any) -> LLM:
    llm = LLM(model, speculate="lookup", draft_tokens=draft_tokens, adaptive_drafts=False, **config)
    return begun_with(llm, drafter)


def graphed(model: GPT2, engine: str, drafter: Any, **config: Any) -> LLM:
    """An engine whose steps a fake records and replays."""
    llm = graph_llm(model, engine, speculate="lookup", adaptive_drafts=False, **{"draft_tokens": 6, **config})
    return begun_with(llm, drafter)


def edited(owner: Any, name: str, *edits: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A mutant: the function of that name, some parts of it written in another way, wherever it was imported.

    edits: in turn what stands there, once, and what is to stand there.
    """

    def mutate(patch: pytest.MonkeyPatch) -> None:
        function = vars(owner)[name]
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in zip(edits[::2], edits[1::2], strict=True):
            assert source.count(old) == 1, (name, old)
            source = source.replace(old, new)
        # super() finds the class in `__class__` of the place around it.
        text = f"def make(__class__):\n{textwrap.indent(source, '    ')}\n    return {name}\n"
        code = compile("from __future__ import annotations\n" + text, f"<mutant of {name}>", "exec")
        made: dict[str, Any] = {}
        exec(code, vars(inspect.getmodule(function)), made)
        mutant = made["make"](owner)
        patch.setattr(owner, name, mutant)
        for module in [module for key, module in sys.modules.items() if key.startswith("nanoinfer.")]:
            if vars(module).get(name) is function:
                patch.setattr(module, name, mutant)

    return mutate
