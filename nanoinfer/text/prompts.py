"""Prompts and parameters into checked requests: what is wrong is said before anything is computed. Chapter 1."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nanoinfer.model.config import END_OF_TEXT, ModelConfig
from nanoinfer.records import BYTES, Request, SamplingParams
from nanoinfer.text.tokenizer import Tokenizer, gpt2_tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class RequestMaker:
    """Makes requests for one model.

    max_len: context in tokens, prompt and new ones together. vocab_size: ids from 0 to vocab_size - 1 are known.
    seeds: where requests that bring no seed draw theirs, in order of submission. end_of_text: ids that end a text.
    """

    tokenizer: Tokenizer
    max_len: int
    vocab_size: int
    seeds: random.Random
    end_of_text: Sequence[int] = (END_OF_TEXT,)
    Params: ClassVar[Any] = SamplingParams  # its defaults are those of prompts that bring none

    @classmethod
    def of(cls, shape: ModelConfig, max_len: int | None, seed: int) -> Any:
        """For a model of that shape. max_len: as for `context_of`."""
        seeds, context = random.Random(seed), context_of(shape, max_len)
        return cls(gpt2_tokenizer(), context, shape.vocab_size, seeds, shape.end_of_text)

    def requests(self, prompts: Any, params: Any) -> list[Any]:
        """The requests of one call, in the order of its prompts.

        ValueError for the first thing that is wrong, before any seed is drawn.
        """
        items = prompt_list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or self.Params()] * len(items)
        if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
            raise ValueError(f"params must be SamplingParams, or a list with one a prompt, not {params!r}")
        if len(params) != len(items):
            raise ValueError(f"params must be one, or one a prompt: there are {len(params)} for {len(items)} prompts")
        names = [f"prompt {i}" if len(items) > 1 else "prompt" for i in range(len(items))]
        texts = [self._token_ids(item, name) for item, name in zip(items, names, strict=True)]
        limits = [self.limit(name, len(ids), p) for name, ids, p in zip(names, texts, params, strict=True)]
        return [self.make(i, *each) for i, each in enumerate(zip(texts, params, limits, strict=True))]

    def _token_ids(self, prompt: Prompt, name: str) -> tuple[int, ...]:
        ids = self.tokenizer.encode(prompt, context=self.max_len, name=name) if isinstance(prompt, str) else prompt
        if len(ids) == 0:
            raise ValueError(f"{name} must have at least one token, but is empty")
        ids = tuple(ids)  # ahead of the looks at each: the copy fetches ids that lie anywhere in memory all at once
        if {*map(type, ids)} != {int} or not 0 <= min(ids) <= max(ids) < self.vocab_size:
            wrong = next(token for token in ids if type(token) is not int or not 0 <= token < self.vocab_size)
            raise ValueError(f"{name} must hold token ids from 0 to {self.vocab_size - 1}, not {wrong!r}")
        return ids

    def limit(self, name: str, length: int, params: SamplingParams) -> int:
        """How many tokens may follow a prompt: max_tokens, or fewer where the context ends. ValueError if none may."""
        if length >= self.max_len:
            raise ValueError(f"{name} has {length} tokens and no room for a new one: the context is {self.max_len}")
        return min(params.max_tokens, self.max_len - length)

    def make(self, index: int, token_ids: tuple[int, ...], params: SamplingParams, limit: int) -> Any:
        """The request of one prompt."""
        seed = self.seeds.getrandbits(32) if params.seed is None else params.seed
        stop_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else self.end_of_text)
        return Request(index, token_ids, params, seed, limit, stop_ids)


def context_of(shape: ModelConfig, max_len: int | None) -> int:
    """The longest text that is asked of a model of that shape; None: its own. ValueError for more."""
    context = shape.n_positions
    if max_len is not None and not 1 < max_len <= context:
        raise ValueError(f"max_len must be from 2 to the model's context of {context} tokens, not {max_len}")
    return max_len or context


def prompt_list(prompts: Any) -> list[Prompt]:
    """One prompt or several, as a list. A list of ints is one prompt; an empty list is no prompt at all."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Sequence) and not isinstance(prompts, BYTES):
        if {*map(type, prompts)} == {int}:
            return [prompts]
        if all(isinstance(item, Sequence) and not isinstance(item, BYTES) for item in prompts):
            return list(prompts)
    raise ValueError(f"prompts must be text, token ids, or a list of these, not {prompts!r:.80}")
