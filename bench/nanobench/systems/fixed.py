"""Our model over a dense cache of one fixed length: read whole, or its decode step under torch.compile.

`dense-1024` reads all 1024 positions under a mask in every step. The compiled ones read up to a multiple, as the dense
engine does, and torch makes one graph of each batch size and read length: what chapter 4 captures by hand. The engine's
loop drives them all; compile time falls into the warm-up.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nanoinfer import SamplingParams
from nanoinfer.cache.dense import READ_MULTIPLE, DenseCache
from nanoinfer.engine.eager import EagerRunner
from nanoinfer.engine.engine import Engine, Row
from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import decode_step
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.text.prompts import RequestMaker
from nanoinfer.text.tokenizer import gpt2_tokenizer

Decode = Callable[..., Tensor]


class FixedDense:
    """The engine's loop over a DenseCache of `length` tokens a row, made anew when the batch size changes.

    mode: of torch.compile ("reduce-overhead", "max-autotune"), for the decode step alone; None runs it eagerly, and
    reads the whole cache. ValueError for a length beyond the model's context.
    """

    def __init__(self, name: str, model: GPT2, length: int, mode: str | None = None) -> None:
        if length > model.config.n_positions:
            raise ValueError(f"{name} needs a context of {length} tokens, not {model.config.n_positions}")
        self.name, self.mode, self._model, self._length = name, mode, model, length
        self._maker = RequestMaker(gpt2_tokenizer(), length, model.config.vocab_size, random.Random(0))
        self._engine: Engine | None = None
        self._skips = 0 if mode is None else int(torch._dynamo.utils.counters["inductor"]["cudagraph_skips"])

    @property
    def note(self) -> str:
        """What torch made of the step, where it did not do what the mode asks for."""
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
        done = [row for rows in self._of(len(prompts)).generate(requests) for row in rows if row.finish_reason]
        return sorted(done, key=lambda row: row.request.index)

    def _of(self, batch: int) -> Engine:
        """An engine of just so many rows."""
        if self._engine is None or self._engine.max_batch != batch:
            self._engine = None  # its cache goes before the next one comes
            model, multiple = self._model, self._length if self.mode is None else READ_MULTIPLE
            with torch.inference_mode():
                cache = DenseCache(model.config, batch, self._length, model.device, model.dtype, multiple)
            runner = EagerRunner if self.mode is None else partial(CompiledRunner, step=compiled(self.mode))
            self._engine = Engine(model, cache, batch, runner=runner)
        return self._engine


class CompiledRunner(EagerRunner):
    """Prefill as ever; decode by a compiled step, one graph a read length."""

    def __init__(self, model: GPT2, memory: Any, state: BatchState, *, step: Decode) -> None:
        super().__init__(model, memory, state)
        self._step, self._bucket = step, memory.bucket
        for tensor in (state.integers, state.floats, *memory.tensors()):
            torch._dynamo.mark_static_address(tensor)  # written in place: torch makes no graph of what may move

    def decode(self, batch: int, longest: int, sampler: Sampler) -> Tensor:
        """As the eager one, but with the read length rounded up first, since each that differs is compiled."""
        # On a copy of the memory's fields: what `begin` notes there would else keep results of the compiled step alive.
        memory = copy.copy(self.memory)
        return self._step(self.model, memory, self.state, batch, self._bucket(longest), sampler)


def compiled(mode: str) -> Decode:
    """The decode step under torch.compile, whole, for one shape each."""
    plain: Decode = inspect.unwrap(decode_step)  # the caller is in inference mode already

    def step(model: GPT2, memory: Any, state: Any, batch: int, longest: int, sampler: Any) -> Tensor:
        return plain(model, memory, state, batch, longest, sampler)

    step.__code__ = step.__code__.replace()  # torch counts recompilations by code object: to each its own
    fast: Decode = torch.compile(step, mode=mode, dynamic=False, fullgraph=True)
    return fast
