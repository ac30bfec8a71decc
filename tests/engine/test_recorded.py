"""The tokens of five hundred requests are those that the engine of before the rungs gave, on every engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.cache.captured import CapturedDense, CapturedPaged
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.none import NoCache
from nanoinfer.cache.paged import PagedCache
from nanoinfer.cache.ragged import CapturedRagged, RaggedPaged
from nanoinfer.config import ENGINES, RECIPES
from nanoinfer.engine.device import DeviceEngine
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.graphs import GraphEngine
from nanoinfer.engine.late import LateEngine
from nanoinfer.engine.penalties import AllSamplers, PenaltySampler
from nanoinfer.engine.samplers import SAMPLERS
from nanoinfer.make import EagerQueue, GraphQueue
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request
from nanoinfer.text.samples import SampleMaker
from nanoinfer.text.tokenizer import gpt2_tokenizer
from nanoinfer.verify import verify_tokens
from tests.engine.recorded import FILE, GROUPS, ODD

ROWS, LEN, BLOCKS = 5, 100, 12


@cache
def model_of(name: str) -> GPT2:
    return GROUPS[name].model(name)


@cache
def recorded(name: str) -> list[list[int]]:
    of: list[list[int]] = json.loads(FILE.read_text(encoding="utf-8"))[name]
    return of


# Each chapter's engine, and chapter 5 over each


def caches(model: GPT2) -> dict[str, Callable[[], Any]]:
    kind, where = (model.config, ROWS, LEN), (model.device, model.dtype)
    ragged: dict[str, Any] = {"preemption": True, "identity": b"model"}
    return {
        "none": NoCache,
        "dense": lambda: DenseCache(*kind, *where),
        "paged": lambda: PagedCache(*kind, BLOCKS, 16, *where),
        "ragged": lambda: RaggedPaged(*kind, BLOCKS, 16, *where, **ragged),
        "captured ragged": lambda: CapturedRagged(*kind, BLOCKS, 16, *where, **ragged),
        "captured dense": lambda: CapturedDense(*kind, *where),
        "captured paged": lambda: CapturedPaged(*kind, BLOCKS, 16, *where),
    }


def graph_queue(model: GPT2, cache: Any, rows: int, mixed: bool = True) -> GraphQueue:
    scoring = PenaltySampler(rows, model.config.vocab_size, model.device, SAMPLERS.filtered)
    samplers = AllSamplers(*SAMPLERS, scoring)
    return GraphQueue(
        model, cache, rows, recorder=None, max_rows=rows, samplers=samplers, budget=40, chunk=17, mixed=mixed
    )


def graph_engine(*args: Any) -> GraphEngine:
    return GraphEngine(*args, recorder=None, max_rows=ROWS)


queue = partial(EagerQueue, budget=40, chunk=17)
LAYERS: dict[str, tuple[Any, str]] = {
    "1": (Engine, "none"), "2": (Engine, "dense"), "3": (Engine, "paged"),
    "device dense": (DeviceEngine, "captured dense"), "device paged": (DeviceEngine, "captured paged"),
    "late dense": (LateEngine, "captured dense"), "late paged": (LateEngine, "captured paged"),
    "graph dense": (graph_engine, "captured dense"), "graph paged": (graph_engine, "captured paged"),
    "queue none": (partial(EagerQueue, budget=ROWS * LEN), "none"),
    "queue dense": (queue, "dense"), "queue paged": (queue, "ragged"),
    "queue graph dense": (partial(graph_queue, mixed=False), "captured dense"),
    "queue graph paged": (graph_queue, "captured ragged"),
}  # fmt: skip


def asked() -> list[Request]:
    """Made anew, since streams of stop strings are used once."""
    maker = SampleMaker(gpt2_tokenizer(), LEN, ODD.vocab_size, Random(0), ODD.end_of_text)
    return maker.requests(*GROUPS["odd"].requests("odd"))[:80]


@pytest.mark.parametrize("name", LAYERS)
def test_each_chapter(name: str) -> None:
    model, (kind, cache_name) = model_of("odd"), LAYERS[name]
    engine = kind(model, caches(model)[cache_name](), ROWS)
    requests = [r for r in asked() if name.startswith("queue") or not r.params.penalises]
    ended = [s for settled in engine.generate(requests) for s in settled if s.finish_reason]
    found = {s.request.index: s.tokens[len(s.request.prompt_token_ids) :] for s in ended}
    assert found == {r.index: recorded("odd")[r.index] for r in requests}


# The product's engines

SETTINGS: dict[str, dict[str, Any]] = {
    "": {},
    " one row": {"max_batch": 1},
    " tiny pool": {"kv_blocks": 9},
    " tiny pool, preempted": {"kv_blocks": 9, "preemption": True, "prefix_caching": True},
}
CASES = [(name, each) for name in ENGINES for each in SETTINGS if "pool" not in each or RECIPES[name].cache == "paged"]


def as_recorded(name: str, **settings: Any) -> None:
    """Every token is the recorded one, or all but tied with it."""
    model, (prompts, params) = model_of(name), GROUPS[name].requests(name)
    with LLM(model, threads=1, **{"max_batch": 8, **settings}) as llm:
        done = llm.generate(prompts, params)
        pairs = zip(done, recorded(name), strict=True)
        other = [at for at, (one, tokens) in enumerate(pairs) if [*one.token_ids] != tokens]
        assert len(other) <= len(done) // 50
        if other:
            verify_tokens(llm.forward_logits, [done[at] for at in other], [params[at] for at in other])


@pytest.mark.long
@pytest.mark.parametrize("engine, settings", CASES)
def test_odd_shapes(engine: str, settings: str) -> None:
    as_recorded("odd", engine=engine, **SETTINGS[settings])


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_the_small_model(engine: str) -> None:
    as_recorded("small", engine=engine, max_len=64)


@pytest.mark.long
def test_the_shape_of_gpt2() -> None:
    as_recorded("gpt2", engine="naive")
