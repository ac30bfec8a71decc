"""The engines of the book, through the same `LLM` that users have; and our model over a dense cache of one length.

`dense-1024` reads all 1024 positions under a mask. The compiled ones read up to a multiple, as the dense engine does,
and torch makes one graph for each batch size and read length: what chapter 4 captures by hand. The engine's loop drives
them all. Compiling happens in the warm-up.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanobench.systems.base import Limits
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.captured import CapturedDense
from nanoinfer.capacity import batched_tokens
from nanoinfer.engine.mixed import MixedEngine
from nanoinfer.engine.samplers import Sampler
from nanoinfer.engine.step import decode_step
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.text.samples import SampleMaker
from nanoinfer.text.tokenizer import gpt2_tokenizer


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
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        return [list(c.token_ids) for c in self.llm.generate(prompts.tolist(), params)]


Decode = Callable[..., Tensor]


class FixedDense:
    """The engine's loop over a dense cache that is made anew when the batch size changes.

    length: tokens of a row in the cache; None takes the limits'. mode: torch.compile's for the decode step
    ("reduce-overhead", "max-autotune"); None runs the step eagerly and reads the whole cache.
    ValueError for a length beyond the model's context.
    """

    def __init__(
        self, name: str, model: GPT2, limits: Limits, *, length: int | None = None, mode: str | None = None
    ) -> None:
        length = length or limits.max_len
        if length > model.config.n_positions:
            raise ValueError(f"{name} needs a context of {length} tokens, not {model.config.n_positions}")
        self.name, self.mode, self._model, self._length = name, mode, model, length
        self._maker = SampleMaker(gpt2_tokenizer(), length, model.config.vocab_size, random.Random(0))
        self.engine: FixedReads | None = None
        self._skips = 0 if mode is None else int(torch._dynamo.utils.counters["inductor"]["cudagraph_skips"])

    @property
    def note(self) -> str:
        """What torch did instead, where it did not do what the mode asks for."""
        skips = int(torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]) - self._skips if self.mode else 0
        return f"torch.compile made no CUDA graph of {skips} compiled steps" if skips else ""

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        requests = self._maker.requests(prompts.tolist(), params)
        engine, done = self._engine_for(len(prompts)), list[Any]()
        for settled in engine.generate(requests):
            done += [s for s in settled if s.finish_reason]
        return [s.token_ids for s in sorted(done, key=lambda s: s.request.index)]

    def _engine_for(self, batch: int) -> FixedReads:
        """An engine with exactly `batch` rows."""
        if self.engine is None or self.engine.max_batch != batch:
            self.engine = None  # its cache goes before the next one comes
            model = self._model
            with torch.inference_mode():
                cache = CapturedDense(model.config, batch, self._length, model.device, model.dtype)
            if self.mode is None:
                cache.read_multiple = self._length
            budget = max(batch, batched_tokens(model.device))  # as the other engines of the book have
            self.engine = FixedReads(model, cache, batch, recorder=None, max_rows=0, lag=0, budget=budget)
            if self.mode:
                self.engine.compile(self.mode)
        return self.engine


class FixedReads(MixedEngine):
    """An engine whose decode steps read a length that is rounded up, so that few lengths occur."""

    cache: CapturedDense
    decode_step: Decode = staticmethod(decode_step)

    def compile(self, mode: str) -> None:
        """Decode by a compiled step, one graph for each read length."""
        self.decode_step = compiled(mode)
        for tensor in (self.state.integers, self.state.floats, *self.cache.tensors()):
            torch._dynamo.mark_static_address(tensor)  # written in place: torch makes no graph of what may move

    def decode(self, rows: int, context: int, sampler: Sampler) -> Tensor:
        return self.decode_step(self.model, self.cache, self.state, rows, self.cache.bucket(context), sampler)


def compiled(mode: str) -> Decode:
    """The decode step under torch.compile, as one graph for each shape."""
    plain: Decode = inspect.unwrap(decode_step)  # the caller is in inference mode already

    def step(model: GPT2, cache: Any, state: Any, rows: int, context: int, sampler: Any) -> Tensor:
        return plain(model, cache, state, rows, context, sampler)

    step.__code__ = step.__code__.replace()  # torch counts recompilations by code object: each step needs its own
    fast: Decode = torch.compile(step, mode=mode, dynamic=False, fullgraph=True)
    return fast
