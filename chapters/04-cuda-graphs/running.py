"""The running example of chapter 4: three texts in the engine with graphs, and a few ways to record a step wrongly.

It is computed in float64, so that every machine prints the same digits. Recordings are the stand-in's, on a CPU: they
repeat operations on the same memory with the same numbers, as a CUDA graph does, and gain no time.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from nanobook.running import model
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.paged import PagedCache, PagedPlan
from nanoinfer.engine import graphs
from nanoinfer.engine.fake_graph import FakeRecorder, escaping
from nanoinfer.engine.graphs import Key, Replayable
from nanoinfer.engine.samplers import Sampler, sample
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import Rows
from nanoinfer.model.gpt2 import GPT2, Cache

PROMPTS = ("Once upon a time", "The old fox looked up at", "Where are you")
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=24, seed=5, ignore_eos=True)
CAPTURED_AT = 4  # where the first row's newest token stands when its first decode step is recorded


def llm(engine: str = "paged-graph", read_multiple: int | None = None, **settings: Any) -> LLM:
    """An `LLM` that replays a fake recorder's recordings, in a batch of at most four rows of 64 tokens.

    read_multiple: of slots that the dense cache reads; it is 128, and smaller here so that short texts pass it.
    """
    with warnings.catch_warnings():  # that a CPU records no steps: the fake recorder does
        warnings.simplefilter("ignore", RuntimeWarning)
        made = LLM(model(), engine=engine, **{"max_batch": 4, "max_graph_batch": 4, "max_len": 64, **settings})
    made.core.recorder, made.core.lag = FakeRecorder(), 2
    if read_multiple:
        made.core.cache.read_multiple = read_multiple
    return made


def decode_graphs(made: LLM) -> dict[Key, Any]:
    """The captured decode steps."""
    return {key: captured.graph for key, captured in made.core.graphs.items() if key.columns == 1}


def told(made: LLM, params: SamplingParams = GREEDY, prompts: tuple[str, ...] = PROMPTS) -> list[str]:
    """Each prompt with what comes of it."""
    done = made.generate(list(prompts), params)
    return [prompt + row.text for prompt, row in zip(prompts, done, strict=True)]


def attention_escapes() -> AbstractContextManager[object]:
    """Attention in decode runs on a stream that the capture does not follow: in no replay."""
    plain = PagedCache.attend

    def attend(cache: PagedCache, plan: PagedPlan, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not plan.batch.past:  # prompts
            return plain(cache, plan, layer, q, k, v)
        with escaping():
            return plain(cache, plan, layer, q, k, v)

    return patch.object(PagedCache, "attend", attend)


def position_is_a_number() -> AbstractContextManager[object]:
    """The position embedding's position is a Python number: that of the capture."""

    @torch.inference_mode()
    def step(model: GPT2, cache: Cache, state: BatchState, count: int, context: int, sampler: Sampler) -> Tensor:
        rows = state.at(slice(0, count))
        plan = cache.plan(Rows(rows.token, rows.position, rows.row, rows.row, 1, context - 1))
        seen = replace(plan.batch, positions=torch.full((count,), CAPTURED_AT))
        logits = model.head(model.hidden(seen, partial(cache.attend, plan)))
        torch.mul(sampler(logits, rows), rows.live, out=rows.token)
        rows.integers[1:3].add_(rows.live)
        return rows.token

    return patch.object(graphs, "decode_step", step)


def nobody_advances() -> AbstractContextManager[object]:
    """Rows of nobody go on like live ones: token, position and step."""

    @torch.inference_mode()
    def step(model: GPT2, cache: Cache, state: BatchState, count: int, context: int, sampler: Sampler) -> Tensor:
        rows = state.at(slice(0, count))
        fed = Rows(rows.token, rows.position, rows.row, rows.row, 1, context - 1)
        rows.token.copy_(sampler(model(fed, cache), rows))
        rows.integers[1:3].add_(1)
        return rows.token

    return patch.object(graphs, "decode_step", step)


class _Short(Key):
    """A key that does not know how far a step reads."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and (self.rows, self.columns) == (other.rows, other.columns)

    def __hash__(self) -> int:
        return hash((self.rows, self.columns))


def key_without_length() -> AbstractContextManager[object]:
    """One graph a batch size, however far it reads."""
    return patch.object(graphs, "Key", _Short)


def noise_is_a_number(made: LLM) -> None:
    """The sampler's step number, which its noise is made from, is a Python number: that of the capture."""

    def frozen(logits: Tensor, rows: BatchState) -> Tensor:
        integers = rows.integers.clone()
        integers[2].fill_(1)
        return sample(logits, replace(rows, integers=integers))

    made.core.samplers = made.core.samplers._replace(unfiltered=frozen)


@contextmanager
def counted(made: LLM) -> Iterator[dict[Key, int]]:
    """How often each captured step is replayed meanwhile."""
    counts: dict[Key, int] = {}

    class Counting:
        def __init__(self, key: Key, graph: Replayable) -> None:
            self.key, self.graph = key, graph

        def replay(self) -> None:
            counts[self.key] = counts.get(self.key, 0) + 1
            self.graph.replay()

    graphs = made.core.graphs
    plain = dict(graphs)
    for key, captured in plain.items():
        graphs[key] = captured._replace(graph=Counting(key, captured.graph))
    try:
        yield counts
    finally:
        graphs.update(plain)
