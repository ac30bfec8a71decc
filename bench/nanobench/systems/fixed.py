"""Our model over a dense cache of one fixed length: all of it read in every step, or the step under torch.compile.

`dense-1024` reads all 1024 positions under a mask. The compiled ones read up to a multiple, as the dense engine does,
and torch makes one graph for each batch size and read length: what chapter 4 captures by hand. The engine's loop drives
them all. Compiling happens in the warm-up.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nanobench.systems.base import Limits
from nanoinfer import SamplingParams
from nanoinfer.cache.dense import READ_MULTIPLE, DenseCache
from nanoinfer.devices import batched_tokens
from nanoinfer.engine.eager import EagerRunner
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.scheduler import Row
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import decode_step
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.text.prompts import RequestMaker
from nanoinfer.text.tokenizer import gpt2_tokenizer

Decode = Callable[..., Tensor]


class FixedDense:
    """The engine's loop over a DenseCache that is made anew when the batch size changes.

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
        self._maker = RequestMaker(gpt2_tokenizer(), length, model.config.vocab_size, random.Random(0))
        self.engine: Engine | None = None
        self._skips = 0 if mode is None else int(torch._dynamo.utils.counters["inductor"]["cudagraph_skips"])

    @property
    def note(self) -> str:
        """What torch did instead, where it did not do what the mode asks for."""
        skips = int(torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]) - self._skips if self.mode else 0
        return f"torch.compile made no CUDA graph of {skips} compiled steps" if skips else ""

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        return [row.token_ids for row in self._rows(prompts, new_tokens)]

    def step_times(self, prompts: Tensor, new_tokens: int) -> list[float]:
        return list(self._rows(prompts, new_tokens)[0].metrics().itl_s)

    def _rows(self, prompts: Tensor, new_tokens: int) -> list[Row]:
        """The rows of a whole generation, in the order of the prompts."""
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        requests = self._maker.requests(prompts.tolist(), params)
        done = [row for rows in self._engine_for(len(prompts)).generate(requests) for row in rows if row.finish_reason]
        return sorted(done, key=lambda row: row.request.index)

    def _engine_for(self, batch: int) -> Engine:
        """An engine with exactly `batch` rows."""
        if self.engine is None or self.engine.max_batch != batch:
            self.engine = None  # its cache goes before the next one comes
            model, multiple = self._model, self._length if self.mode is None else READ_MULTIPLE
            with torch.inference_mode():
                cache = DenseCache(model.config, batch, self._length, model.device, model.dtype, multiple)
            runner = EagerRunner if self.mode is None else partial(CompiledRunner, step=compiled(self.mode))
            budget = max(batch, batched_tokens(model.device))  # as the other engines of the book have
            self.engine = Engine(model, cache, batch, runner=runner, max_batched_tokens=budget)
        return self.engine


class CompiledRunner(EagerRunner):
    """Prefill as in the eager runner; decode by a compiled step, one graph for each read length."""

    def __init__(self, model: GPT2, cache: Any, state: BatchState, *, step: Decode) -> None:
        super().__init__(model, cache, state)
        self._step, self._bucket = step, cache.bucket
        for tensor in (state.integers, state.floats, *cache.tensors()):
            torch._dynamo.mark_static_address(tensor)  # written in place: torch makes no graph of what may move

    def decode(self, batch: int, longest: int, sampler: Sampler) -> Tensor:
        """As the eager runner, with the read length rounded up first: every other length would be compiled too."""
        return self._step(self.model, self.cache, self.state, batch, self._bucket(longest), sampler)


def compiled(mode: str) -> Decode:
    """The decode step under torch.compile, as one graph for each shape."""
    plain: Decode = inspect.unwrap(decode_step)  # the caller is in inference mode already

    def step(model: GPT2, cache: Any, state: Any, batch: int, longest: int, sampler: Any) -> Tensor:
        return plain(model, cache, state, batch, longest, sampler)

    step.__code__ = step.__code__.replace()  # torch counts recompilations by code object: each step needs its own
    fast: Decode = torch.compile(step, mode=mode, dynamic=False, fullgraph=True)
    return fast
