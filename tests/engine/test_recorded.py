"""The tokens of eighty requests are those that the engine of before the rungs (ded77c2) gave, on each chapter's."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.cache.captured import CapturedDense, CapturedPaged
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.none import NoCache
from nanoinfer.cache.paged import PagedCache
from nanoinfer.cache.ragged import CapturedRagged, RaggedPaged
from nanoinfer.engine.device import DeviceEngine
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.graphs import GraphEngine
from nanoinfer.engine.late import LateEngine
from nanoinfer.engine.penalties import AllSamplers, PenaltySampler
from nanoinfer.engine.samplers import SAMPLERS
from nanoinfer.engine.scores import PlainScores
from nanoinfer.engines.kernels import KernelQueue
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request
from nanoinfer.text.samples import SampleMaker
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.conftest import SMALL

RECORDED: list[list[int]] = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
ROWS, LEN, BLOCKS = 5, SMALL.n_positions, 12


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


def graph_queue(model: GPT2, cache: Any, rows: int, mixed: bool = True) -> KernelQueue:
    scoring = PenaltySampler(rows, model.config.vocab_size, model.device, SAMPLERS.filtered)
    samplers = AllSamplers(*SAMPLERS, scoring)
    return KernelQueue(
        model, cache, rows, recorder=None, max_rows=rows, samplers=samplers, budget=40, chunk=17, mixed=mixed
    )


def graph_engine(*args: Any) -> GraphEngine:
    return GraphEngine(*args, recorder=None, max_rows=ROWS)


queue = partial(PlainScores, budget=40, chunk=17)
LAYERS: dict[str, tuple[Any, str]] = {
    "1": (Engine, "none"), "2": (Engine, "dense"), "3": (Engine, "paged"),
    "device dense": (DeviceEngine, "captured dense"), "device paged": (DeviceEngine, "captured paged"),
    "late dense": (LateEngine, "captured dense"), "late paged": (LateEngine, "captured paged"),
    "graph dense": (graph_engine, "captured dense"), "graph paged": (graph_engine, "captured paged"),
    "queue none": (partial(PlainScores, budget=ROWS * LEN), "none"),
    "queue dense": (queue, "dense"), "queue paged": (queue, "ragged"),
    "queue graph dense": (partial(graph_queue, mixed=False), "captured dense"),
    "queue graph paged": (graph_queue, "captured ragged"),
}  # fmt: skip


def asked() -> list[Request]:
    """Ragged, up to the last position, greedy, sampled, filtered, stopped, penalised.

    Made anew, since streams of stop strings are used once.
    """
    draw = Random("odd 320")
    prompts, params = [], []
    for n in range(len(RECORDED)):
        length = draw.choice([1, 2, draw.randint(3, 12), draw.randint(13, LEN - 1)])
        prompts.append([draw.randrange(SMALL.vocab_size) for _ in range(length)])
        params.append(
            SamplingParams(
                max_tokens=LEN if n % 20 == 0 else draw.randint(1, 24),
                temperature=0.0 if n % 3 == 0 else draw.choice([0.5, 0.8, 1.0, 1.7]),
                top_k=draw.choice([0, 0, 1, 5, 40]),
                top_p=draw.choice([1.0, 1.0, 0.9, 0.3]),
                seed=n,
                stop=draw.choice([(), (), (), ("e",), ("the", " w"), (".",)]),
                stop_token_ids=draw.choice([(), (), (7, 11), (13,)]),
                ignore_eos=n % 5 == 0,
                presence_penalty=draw.choice([0.0, 0.0, 0.0, 0.5]),
                frequency_penalty=draw.choice([0.0, 0.0, 0.0, -0.2]),
            )
        )
    maker = SampleMaker(gpt2_tokenizer(), LEN, SMALL.vocab_size, Random(0), SMALL.end_of_text)
    return maker.requests(prompts, params)


@pytest.mark.parametrize("name", LAYERS)
def test_each_chapter(small_model: GPT2, name: str) -> None:
    kind, cache_name = LAYERS[name]
    engine = kind(small_model, caches(small_model)[cache_name](), ROWS)
    requests = [r for r in asked() if name.startswith("queue") or not r.params.penalises]
    ended = [s for settled in engine.generate(requests) for s in settled if s.finish_reason]
    found = {s.request.index: s.tokens[len(s.request.prompt_token_ids) :] for s in ended}
    assert found == {r.index: RECORDED[r.index] for r in requests}
