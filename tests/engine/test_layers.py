"""Each chapter's engine gives the recorded tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pytest

from nanoinfer.engine.graph_stats import GraphStats
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request
from nanoinfer.rungs.captured import CapturedDense, CapturedPaged
from nanoinfer.rungs.dense import DenseCache
from nanoinfer.rungs.device import DeviceEngine
from nanoinfer.rungs.engine import Engine
from nanoinfer.rungs.graphs import GraphEngine
from nanoinfer.rungs.late import LateEngine
from nanoinfer.rungs.none import NoCache
from nanoinfer.rungs.paged import PagedCache
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
        "captured dense": lambda: CapturedDense(*kind, *where),
        "captured paged": lambda: CapturedPaged(*kind, BLOCKS, 16, *where),
    }


def graph_engine(*args: Any) -> GraphEngine:
    return GraphEngine(*args, recorder=None, max_rows=ROWS, stats=GraphStats())


ENGINES: dict[str, tuple[Any, str]] = {
    "1": (Engine, "none"), "2": (Engine, "dense"), "3": (Engine, "paged"),
    "device dense": (DeviceEngine, "captured dense"), "device paged": (DeviceEngine, "captured paged"),
    "late dense": (LateEngine, "captured dense"), "late paged": (LateEngine, "captured paged"),
    "graph dense": (graph_engine, "captured dense"), "graph paged": (graph_engine, "captured paged"),
}  # fmt: skip


@cache
def asked(name: str, most: int) -> list[Request]:
    model = model_of(name)
    prompts, params = GROUPS[name].requests(name)
    maker = RequestMaker(gpt2_tokenizer(), 100, model.config.vocab_size, Random(0), model.config.end_of_text)
    return [r for r in maker.requests(prompts, params)[:most] if not r.params.penalises]


@pytest.mark.parametrize("name", ENGINES)
def test_recorded(name: str) -> None:
    model = model_of("odd")
    kind, cache_name = ENGINES[name]
    engine = kind(model, caches(model)[cache_name](), ROWS)
    recorded = json.loads(FILE.read_text(encoding="utf-8"))["odd"]
    found = {}
    asked.cache_clear()  # streams of stop strings are used once
    requests = asked("odd", 80)
    for settled in engine.generate(requests):
        for s in settled:
            if s.finish_reason:
                found[s.request.index] = s.token_ids[len(s.request.prompt_token_ids) :]
    assert found == {r.index: recorded[r.index] for r in requests}
