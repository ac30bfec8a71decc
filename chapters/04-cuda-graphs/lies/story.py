"""The opening story with the model that ships: attention on another stream, a faster replay, another text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

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

from .toy import Recorder

PROMPT, ROOM = "Once upon a time, there was a", 64


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


class Writer:
    """One row of the small model: a prompt that has been run, and a decode step."""

    def __init__(self, device: str, cache: type[CapturedDense] = CapturedDense) -> None:
        at, model = torch.device(device), small(device)
        self.cache: Any = cache(model.config, 1, ROOM, at, model.dtype)
        self.ids, params = gpt2_tokenizer().encode(PROMPT), SamplingParams(temperature=0)
        with torch.inference_mode():
            self.state = BatchState.empty(1, at)
            request = Request(0, tuple(self.ids), params, 0, ROOM, frozenset())
            self.cache.begin(self.state.admit([Begun(0, request.seed, 0, request.params)]))
        prefill = Prefill([Chunk(0, 0, self.ids)])
        batch = Prompts.of_packed(prefill.pack(prefill.layout, self.state.dummy).to(at), prefill.layout)
        prefill_step(model, self.cache, self.state, batch, greedy)
        self.step = partial(decode_step, model, self.cache, self.state, 1, ROOM, greedy)

    def captured(self, recorder: Recorder) -> Any:
        """The graph of the decode step, captured while the row is padding."""
        self.cache.recorder = recorder if isinstance(self.cache, Elsewhere) else None
        with torch.inference_mode():
            saved = self.state.integers.clone()
            self.state.free(slice(0, 1))
            recorder.warm(self.step)
            graph, _ = recorder.record(self.step)
            self.state.integers.copy_(saved)
        return graph

    def replayed(self, recorder: Recorder) -> Callable[[], object]:
        """A replay that keeps this writer alive: a graph does not keep the cache and the state that it writes to."""
        graph = self.captured(recorder)

        def replay(writer: Writer = self) -> None:
            graph.replay()

        return replay

    def text(self, steps: int, step: Any) -> str:
        """The prompt, and what so many steps add to it."""
        for _ in range(steps):
            self.ids.append(int(self.state.token[0]))
            step()
        return gpt2_tokenizer().decode(self.ids)


def texts(recorder: Recorder, device: str, steps: int = 24) -> dict[str, str]:
    """The text by calling each step, by a right graph, and by one that lacks its attention."""
    right, wrong = Writer(device), Writer(device, Elsewhere)
    eager = Writer(device)
    graph, liar = right.captured(recorder), wrong.captured(recorder)  # both live on: the pool goes with its last graph
    return {
        "truth": eager.text(steps, eager.step),
        "right": right.text(steps, graph.replay),
        "wrong": wrong.text(steps, liar.replay),
    }


def steps(recorder: Recorder, device: str) -> dict[str, Callable[[], object]]:
    """The step called from Python and both graphs, to be timed: over a padding row, which never grows too long."""
    found: dict[str, Callable[[], object]] = {}
    for name, kind in (("truth", CapturedDense), ("right", CapturedDense), ("wrong", Elsewhere)):
        writer = Writer(device, kind)
        found[name] = writer.step if name == "truth" else writer.replayed(recorder)
        with torch.inference_mode():
            writer.state.free(slice(0, 1))
    return found


def attentions(recorder: Recorder) -> dict[str, int]:
    """How often the right graph and the wrong one launch attention, as the stand-in counts."""
    found = {}
    for name, kind in (("right", CapturedDense), ("wrong", Elsewhere)):
        launched = Writer("cpu", kind).captured(recorder).operations
        found[name] = sum("scaled_dot_product" in operation for operation in launched)
    return found
