"""Prompts and parameters into checked requests: what is wrong with either is said here, before anything is computed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanoinfer.model.config import END_OF_TEXT
from nanoinfer.requests import BYTES, MAX_SEED, Request, SamplingParams
from nanoinfer.text.stop import TextStream
from nanoinfer.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]

SEED_STEP = 0x4F1BBCDCBFA53E0B  # 2^63 over the golden ratio: its multiples lie far apart


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

    def requests(self, prompts: Any, params: Any) -> list[Request]:
        """The requests of one call, n for each prompt, its samples side by side.

        ValueError for the first thing that is wrong, before any seed is drawn.
        """
        items = prompt_list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(items)
        if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
            raise ValueError(f"params must be SamplingParams, or a list with one a prompt, not {params!r}")
        if len(params) != len(items):
            raise ValueError(f"params must be one, or one a prompt: there are {len(params)} for {len(items)} prompts")
        names = [f"prompt {i}" if len(items) > 1 else "prompt" for i in range(len(items))]
        checked = [self._token_ids(item, name, p) for item, name, p in zip(items, names, params, strict=True)]
        return [
            request
            for i, (ids, p) in enumerate(zip(checked, params, strict=True))
            for request in self._requests(i, ids, p)
        ]

    def _token_ids(self, prompt: Prompt, name: str, params: SamplingParams) -> tuple[int, ...]:
        ids = self.tokenizer.encode(prompt, context=self.max_len, name=name) if isinstance(prompt, str) else prompt
        if len(ids) == 0:
            raise ValueError(f"{name} must have at least one token, but is empty")
        if params.max_tokens == 0 and len(ids) > self.max_len:
            raise ValueError(f"{name} has {len(ids)} tokens, but the context is {self.max_len}")
        if params.max_tokens > 0 and len(ids) >= self.max_len:
            raise ValueError(f"{name} has {len(ids)} tokens and no room for a new one: the context is {self.max_len}")
        ids = tuple(ids)  # ahead of the looks at each: the copy fetches ids that lie anywhere in memory all at once
        if {*map(type, ids)} != {int} or not 0 <= min(ids) <= max(ids) < self.vocab_size:
            wrong = next(token for token in ids if type(token) is not int or not 0 <= token < self.vocab_size)
            raise ValueError(f"{name} must hold token ids from 0 to {self.vocab_size - 1}, not {wrong!r}")
        return ids

    def _requests(self, index: int, token_ids: tuple[int, ...], params: SamplingParams) -> list[Request]:
        seed = self.seeds.getrandbits(32) if params.seed is None else params.seed  # one a prompt, however many samples
        stop_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else self.end_of_text)
        return [
            Request(
                index=index,
                prompt_token_ids=token_ids,
                params=params,
                seed=sample_seed(seed, sample),
                limit=min(params.max_tokens, self.max_len - len(token_ids)),
                stop_ids=stop_ids,
                sample=sample,
                text=TextStream(self.tokenizer, params.stop) if params.stop else None,
            )
            for sample in range(params.n)
        ]


def sample_seed(seed: int, sample: int) -> int:
    """The seed of one of a prompt's samples, from 0 to 2^63 - 1: that of sample 0 is `seed` itself.

    Steps of an odd number, modulo 2^63, never meet again. This one is 2^63 over the golden ratio (Fibonacci hashing:
    Knuth, "The Art of Computer Programming", volume 3, section 6.4): 128 samples of seeds below 2^32 are all distinct.
    """
    return (seed + sample * SEED_STEP) & MAX_SEED


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
