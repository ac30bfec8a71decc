"""The opening story with the model that ships: attention on another stream, a faster replay, another text."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from nanoinfer.cache.captured import CapturedDense
from nanoinfer.cache.dense import DensePlan
from nanoinfer.engine.samplers import greedy
from nanoinfer.engine.state import BatchState, Begun
from nanoinfer.engine.step import Chunk, Prefill, Prompts, decode_step, prefill_step
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model
from nanoinfer.requests import Request, SamplingParams
from nanoinfer.text.tokenizer import gpt2_tokenizer

from .alone import Alone
from .recorders import Recorder

PROMPT, ROOM, STEPS = "Once upon a time, there was a", 64, 24


class Elsewhere(CapturedDense):
    """Its attention is launched on a stream of its own."""

    recorder: Recorder | None = None

    def attend(self, plan: DensePlan, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.recorder is None:
            return super().attend(plan, layer, q, k, v)
        out = torch.empty_like(q)
        with self.recorder.elsewhere():
            out.copy_(super().attend(plan, layer, q, k, v))
        return out


@cache
def small(device: str) -> GPT2:
    """The small model; in float64 on a CPU, so that every CPU writes the same text."""
    return load_model("small", torch.device(device), torch.float64 if device == "cpu" else torch.float32)


class Story(Alone):
    """One row of the small model: a prompt that has been run, and a decode step, called or replayed."""

    wrong, right = Elsewhere, CapturedDense

    def begin(self, cache: type[CapturedDense]) -> None:
        """Run the prompt with that kind of cache."""
        at, model = torch.device(self.device), small(self.device)
        self.cache = cache(model.config, 1, ROOM, at, model.dtype)
        self.ids, params = gpt2_tokenizer().encode(PROMPT), SamplingParams(temperature=0)
        with torch.inference_mode():
            self.state = BatchState.empty(1, at)
            request = Request(0, tuple(self.ids), params, 0, ROOM, frozenset())
            self.cache.begin(self.state.admit([Begun(0, request.seed, 0, request.params)]))
        prefill = Prefill([Chunk(0, 0, self.ids)])
        batch = Prompts.of_packed(prefill.pack(prefill.layout, self.state.dummy).to(at), prefill.layout)
        prefill_step(model, self.cache, self.state, batch, greedy)
        self.step = partial(decode_step, model, self.cache, self.state, 1, ROOM, greedy)

    def truth(self) -> list[str]:
        self.begin(CapturedDense)
        self.again = self.step
        return self.text()

    def capture(self, recorder: Recorder, cache: type[CapturedDense]) -> None:
        """The graph of the decode step, captured while the row is padding."""
        self.begin(cache)
        if isinstance(self.cache, Elsewhere):
            self.cache.recorder = recorder
        with torch.inference_mode():
            saved = self.state.integers.clone()
            self.state.free(slice(0, 1))
            recorder.warm(self.step)
            self.graph, _ = recorder.record(self.step)
            self.state.integers.copy_(saved)

    def replayed(self, recorder: Recorder, way: type[CapturedDense]) -> list[str]:
        self.capture(recorder, way)
        self.again = self.graph.replay
        return self.text()

    def text(self) -> list[str]:
        """The prompt, and what the steps add to it. Then the row is padding, which never grows too long."""
        for _ in range(STEPS):
            self.ids.append(int(self.state.token[0]))
            self.again()
        with torch.inference_mode():
            self.state.free(slice(0, 1))
        return [gpt2_tokenizer().decode(self.ids)]


def attentions(recorder: Recorder) -> dict[str, int]:
    """How often the right graph and the wrong one launch attention, as the stand-in counts."""
    story, found = Story("cpu"), {}
    for side in ("right", "wrong"):
        story.capture(recorder, getattr(story, side))
        found[side] = sum("scaled_dot_product" in operation for operation in story.graph.operations)
    return found
