"""Each chapter's engine gives the recorded tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

import pytest

from nanoinfer.engine.graph_stats import GraphStats
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.sampling import SAMPLERS
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request
from nanoinfer.rungs.captured import CapturedDense, CapturedPaged
from nanoinfer.rungs.cpu import QuickChoice
from nanoinfer.rungs.dense import DenseCache
from nanoinfer.rungs.device import DeviceEngine
from nanoinfer.rungs.engine import Engine
from nanoinfer.rungs.graphs import GraphEngine
from nanoinfer.rungs.late import LateEngine
from nanoinfer.rungs.none import NoCache
from nanoinfer.rungs.paged import PagedCache
from nanoinfer.rungs.ragged import CapturedRagged, RaggedPaged
from nanoinfer.rungs.scores import DeviceScores, PlainScores
from nanoinfer.text.prompts import RequestMaker
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.engine.recorded import FILE, GROUPS

ROWS, LEN, BLOCKS = 5, 100, 12


@cache
def model_of(name: str) -> GPT2:
    return GROUPS[name].model(name)


def caches(model: GPT2) -> dict[str, Callable[[], Any]]:
    kind = model.config, ROWS, LEN
    where = model.device, model.dtype
    return {
        "none": NoCache,
        "dense": lambda: DenseCache(*kind, *where),
        "paged": lambda: PagedCache(*kind, BLOCKS, 16, *where),
        "ragged": lambda: RaggedPaged(*kind, BLOCKS, 16, *where, preemption=True, identity=b"model"),
        "captured ragged": lambda: CapturedRagged(*kind, BLOCKS, 16, *where, preemption=True, identity=b"model"),
        "captured dense": lambda: CapturedDense(*kind, *where),
        "captured paged": lambda: CapturedPaged(*kind, BLOCKS, 16, *where),
    }


class EagerQueue(PlainScores, QuickChoice):
    """Chapter 5 over chapters 1 to 3."""


class GraphQueue(DeviceScores, GraphEngine):
    """Chapter 5 over chapter 4."""

    Stats = GraphStats


def queue(model: GPT2, cache: Any, rows: int, **settings: Any) -> Any:
    settings = {"budget": 40, "chunk": 17} | settings
    return EagerQueue(model, cache, rows, **settings)


def graph_queue(model: GPT2, cache: Any, rows: int, **settings: Any) -> Any:
    scoring = PenaltySampler(rows, model.config.vocab_size, model.device, SAMPLERS.filtered)
    samplers = SAMPLERS._replace(scoring=scoring)
    settings = {"budget": 40, "chunk": 17, "mixed": True} | settings
    return GraphQueue(model, cache, rows, recorder=None, max_rows=rows, samplers=samplers, **settings)


def naive_queue(model: GPT2, cache: Any, rows: int) -> Any:
    return queue(model, cache, rows, budget=rows * LEN, chunk=None)


def graph_engine(*args: Any) -> GraphEngine:
    return GraphEngine(*args, recorder=None, max_rows=ROWS)


ENGINES: dict[str, tuple[Any, str]] = {
    "1": (Engine, "none"), "2": (Engine, "dense"), "3": (Engine, "paged"),
    "device dense": (DeviceEngine, "captured dense"), "device paged": (DeviceEngine, "captured paged"),
    "late dense": (LateEngine, "captured dense"), "late paged": (LateEngine, "captured paged"),
    "graph dense": (graph_engine, "captured dense"), "graph paged": (graph_engine, "captured paged"),
    "queue none": (naive_queue, "none"), "queue dense": (queue, "dense"), "queue paged": (queue, "ragged"),
    "queue graph dense": (partial(graph_queue, mixed=False), "captured dense"),
    "queue graph paged": (graph_queue, "captured ragged"),
}  # fmt: skip


@cache
def asked(name: str, most: int) -> list[Request]:
    model = model_of(name)
    prompts, params = GROUPS[name].requests(name)
    maker = RequestMaker(gpt2_tokenizer(), 100, model.config.vocab_size, Random(0), model.config.end_of_text)
    return maker.requests(prompts, params)[:most]


@pytest.mark.parametrize("name", ENGINES)
def test_recorded(name: str) -> None:
    model = model_of("odd")
    kind, cache_name = ENGINES[name]
    engine = kind(model, caches(model)[cache_name](), ROWS)
    recorded = json.loads(FILE.read_text(encoding="utf-8"))["odd"]
    found = {}
    asked.cache_clear()  # streams of stop strings are used once
    requests = [r for r in asked("odd", 80) if name.startswith("queue") or not r.params.penalises]
    for settled in engine.generate(requests):
        for s in settled:
            if s.finish_reason:
                found[s.request.index] = s.tokens[len(s.request.prompt_token_ids) :]
    assert found == {r.index: recorded[r.index] for r in requests}
