"""Several samples of a prompt, each a request with a seed of its own. Chapter 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from nanoinfer.records import MAX_SEED
from nanoinfer.requests import Request, SamplingParams
from nanoinfer.text.prompts import RequestMaker

SEED_STEP = 0x4F1BBCDCBFA53E0B  # 2^63 over the golden ratio: its multiples lie far apart


@dataclass(frozen=True)
class SampleMaker(RequestMaker):
    """A `RequestMaker` of params.n requests a prompt, side by side."""

    Params: ClassVar[Any] = SamplingParams

    def requests(self, prompts: Any, params: Any) -> list[Any]:
        return [request for samples in super().requests(prompts, params) for request in samples]

    def limit(self, name: str, length: int, params: Any) -> int:
        if params.max_tokens:
            return super().limit(name, length, params)
        if length > self.max_len:
            raise ValueError(f"{name} has {length} tokens, but the context is {self.max_len}")
        return 0

    def make(self, index: int, token_ids: tuple[int, ...], params: Any, limit: int) -> list[Request]:
        one = super().make(index, token_ids, params, limit)  # its seed is the prompt's, however many samples
        seeds = [sample_seed(one.seed, sample) for sample in range(params.n)]
        return [Request(**vars(one) | {"seed": seed, "sample": sample}) for sample, seed in enumerate(seeds)]


def sample_seed(seed: int, sample: int) -> int:
    """The seed of one of a prompt's samples, from 0 to 2^63 - 1: that of sample 0 is `seed` itself.

    Steps of an odd number, modulo 2^63, never meet again. This one is 2^63 over the golden ratio (Fibonacci hashing:
    Knuth, "The Art of Computer Programming", volume 3, section 6.4): 128 samples of seeds below 2^32 are all distinct.
    """
    return (seed + sample * SEED_STEP) & MAX_SEED
