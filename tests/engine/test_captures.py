"""What is captured, when and under which key, on a CPU, through the stand-in: ladders, warm-ups, and what fails.

The names G.. are those of the course's list of defects. What only a GPU can show is in tests/gpu/test_graphs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from operator import attrgetter
from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.graphs import Key, ladder, pick
from nanoinfer.engine.samplers import SAMPLERS
from nanoinfer.engine.state import BatchState
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import SMALL, STD, prompts_of
from tests.engine.fake_graphed import (
    GRAPHED,
    LENGTHS,
    PARAMS,
    Failing,
    Recording,
    decodes,
    graph_llm,
    greedy_rows,
    interrupted,
    live_bits,
    prove,
    same,
    state_bits,
)

# No graph is lost in silence: a warning is an error, but where a test expects it.
pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("no_collection")]
GREEDY, SAMPLED, FILTERED = SAMPLERS


@pytest.fixture(params=GRAPHED)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def few_prefills(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up captures the ladder of decode steps, and few prefills: the fake takes some 30 ms each."""
    monkeypatch.setattr("nanoinfer.engine.graphs.PREFILL_TOKENS", 64)


# The ladder


def test_ladder() -> None:
    """G30, G31: it ends in exactly the maximum, a batch gets the smallest rung that holds it, and little is padding."""
    assert ladder(0) == []
    assert pick([], 1) is None
    assert len(ladder(512)) == 23
    for maximum in range(1, 513):
        sizes = ladder(maximum)
        assert sizes[-1] == maximum
        assert sizes == sorted(set(sizes))
        smallest = [above for below, above in pairwise([0, *sizes]) for _ in range(below, above)]
        assert [pick(sizes, n) for n in range(1, maximum + 1)] == smallest
        assert all(1 - n / rows < 0.3 for n, rows in enumerate(smallest, 1) if n >= 16)
        assert pick(sizes, maximum + 1) is None


# Keys, and how many are kept


def test_keys(small_model: GPT2, engine: str) -> None:
    """All that is baked is in the key: shape, read length, sampler."""
    llm = graph_llm(small_model, engine, read_multiple=32, prefill_chunk=40)
    for sampler, params in (
        (GREEDY, greedy_rows(8)),
        (SAMPLED, SamplingParams(temperature=0.9, max_tokens=8, ignore_eos=True)),
        (FILTERED, SamplingParams(top_k=9, max_tokens=8, ignore_eos=True)),
    ):
        llm.generate(prompts_of([60]), params)
        if engine == "dense-graph":  # the second piece, which has a context, runs eagerly
            expected = {Key(1, 64, 64, sampler), Key(1, 1, 64, sampler), Key(1, 1, 96, sampler)}
        else:  # paged attention finds each row's length itself
            expected = {Key(1, 64, 64, sampler), Key(1, 32, 32, sampler), Key(1, 1, 100, sampler)}
        assert {key for key in llm.core.graphs if key.sampler is sampler} == expected
    assert len(llm.core.graphs) == 3 * len(expected)


def test_the_least_recently_used_goes(small_model: GPT2, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up captures no more than is kept; what the ladders have beyond that, when it is first asked for."""
    monkeypatch.setattr("nanoinfer.engine.graphs.KEPT", 3)
    llm = graph_llm(small_model, engine, max_batch=8)
    for batch, kept in [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (1, [2, 4, 1]), (8, [4, 1, 8]), (2, [1, 8, 2])]:
        llm.core.decode(batch, 50, GREEDY)
        assert decodes(llm) == kept
    assert llm.stats.captures == 5
    prove(llm, LENGTHS, PARAMS)
    assert len(llm.core.graphs) == 3
    fresh = graph_llm(small_model, engine)
    fresh.warm_up()
    assert fresh.stats.captures == len(fresh.core.graphs) == 3


# Captures while rows are live


@pytest.mark.usefixtures("few_prefills")
def test_warm_up_in_the_middle_of_a_generation(small_model: GPT2, engine: str) -> None:
    """G15: state and live memory are as before, and so are the tokens that follow; also where Ctrl-C ends it."""
    llm = graph_llm(small_model, engine)

    def warm_up() -> None:
        before = [*state_bits(llm), *live_bits(llm)]
        llm.core.recorder = Failing("warm", KeyboardInterrupt(), rows=1)
        with pytest.raises(KeyboardInterrupt):
            llm.warm_up()
        assert same([*state_bits(llm), *live_bits(llm)], before)
        llm.core.recorder = Recording()
        llm.warm_up()
        assert same([*state_bits(llm), *live_bits(llm)], before)

    done = interrupted(llm, [4, 9, 30], PARAMS[1:4], 7, warm_up)
    verify_tokens(llm.forward_logits, done, PARAMS[1:4])
    assert llm.stats.captures == len(llm.core.graphs) > 20
    assert not llm.core.failed  # an interrupt is no failure of a key


@pytest.mark.parametrize("mixed", [False, True])
def test_warm_up(small_model: GPT2, engine: str, monkeypatch: pytest.MonkeyPatch, mixed: bool) -> None:
    """G23, G33: all steps are warmed before the first is recorded, largest first; after it, no request waits.

    Tokens are the oracle's: a piece of a prompt is never taken for a whole one, which has graphs by now.
    """
    monkeypatch.setattr("nanoinfer.engine.graphs.PREFILL_TOKENS", 128)
    llm = graph_llm(small_model, engine, max_batch=5, read_multiple=64, prefill_chunk=20, mixed=mixed)
    core, told = llm.core, list[tuple[int, int]]()
    recorder: Any = core.recorder
    llm.warm_up(lambda done, of: told.append((done, of)))
    count, paged = len(core.graphs), engine == "paged-graph"
    assert [name for name, _ in recorder.asked] == ["warm"] * count + ["record"] * count
    assert told == [(n, count) for n in range(1, count + 1)]
    assert [key.rows for key in core.graphs] == sorted((key.rows for key in core.graphs), reverse=True)
    assert {key.rows for key in core.graphs if key.columns == 1} == {1, 2, 4, 5}
    prefills = {(key.rows, key.columns) for key in core.graphs if key.columns > 1}
    ladders = product((1, 5) if paged else (1, 2, 4, 8), (16, 32, 64, 128))
    assert prefills == {(rows, columns) for rows, columns in ladders if paged or rows * columns <= 128}
    assert {key.sampler for key in core.graphs} == set(llm.core.samplers)
    assert llm.stats.capture_s > 0
    for lengths in ([90, 3, 9], [5, 5, 5, 5, 16], [3, 3], [60]):
        for one in ({"temperature": 0}, {"seed": 3}, {"top_k": 9, "seed": 3}, {"logprobs": 2, "seed": 3}):
            prove(llm, lengths, SamplingParams(max_tokens=9, ignore_eos=True, **one))
    llm.warm_up()
    assert llm.stats.captures == count
    assert llm.stats.replayed_steps == llm.stats.decode_steps > 0
    assert llm.stats.replayed_prefills > 0
    assert [*llm.stats.fallbacks] == ([] if paged else ["a piece of a prompt, where prompts are captured whole"])


# Addresses


def change_state(llm: LLM) -> None:
    llm.core.state = BatchState(llm.core.state.integers.clone(), llm.core.state.floats)


def moved(*paths: str) -> Callable[[LLM], None]:
    """Give tensors other memory, and spoil the old one: who still reads it is seen."""

    def change(llm: LLM) -> None:
        for path in paths:
            tensor = attrgetter(path)(llm.core)
            with torch.inference_mode(tensor.is_inference()):
                old, tensor.data = tensor.data, tensor.data.clone()
                old.fill_(-1)

    return change


MOVES: dict[str, Callable[[LLM], object]] = {
    "keys": moved("cache.k"),
    "tables": moved("cache.tables"),
    "the state": change_state,
    "the embedding": moved("model.wte.weight"),
    "one layer": moved("model.h.1.mlp.c_proj.weight"),
    "the positions": moved("model.wpe.weight"),
    "replaced": lambda llm: setattr(llm.model.ln_f, "weight", torch.nn.Parameter(llm.model.ln_f.weight.clone())),
    "half and back": lambda llm: llm.model.half().float(),
}


@pytest.mark.parametrize("what, within", [*product(MOVES, [False]), ("keys", True), ("one layer", True)])
def test_a_tensor_that_has_moved(engine: str, what: str, within: bool) -> None:
    """G11, G14, G16: graphs that knew it are dropped with one warning, and new ones are captured.

    Between two generations it is seen at once; within one, a layer's after as many steps as there are layers.
    """
    if what == "tables" and engine == "dense-graph":
        return
    llm = graph_llm(random_model(SMALL, seed=1, std=STD), engine)
    prove(llm, LENGTHS[:3], PARAMS[:3])
    known = list(llm.core.graphs.values())

    def run() -> None:
        if within:
            interrupted(llm, [4], greedy_rows(20), 5, lambda: MOVES[what](llm))
        else:
            MOVES[what](llm)
            prove(llm, LENGTHS[:3], PARAMS[:3])

    with pytest.warns(RuntimeWarning) as caught:
        run()
    assert [str(w.message) for w in caught] == ["all graphs are dropped: a tensor that they knew has moved"]
    assert not any(captured in known for captured in llm.core.graphs.values())
    prove(llm, LENGTHS[:3], PARAMS[:3])
    assert llm.stats.replayed_steps == llm.stats.decode_steps


# Failures


@pytest.mark.parametrize("where", ["warm", "record"])
@pytest.mark.parametrize(
    "error, said",
    [
        (RuntimeError("no such kernel\nand a long trace"), "RuntimeError: no such kernel"),
        (torch.OutOfMemoryError("CUDA out of memory"), "OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_a_failure_costs_one_key(small_model: GPT2, engine: str, where: str, error: Exception, said: str) -> None:
    """One warning names key and cause; that step runs eagerly, and is counted; all others are replayed."""
    llm = graph_llm(small_model, engine, recorder=Failing(where, error))
    params = greedy_rows(9, 2, 7, 5)
    with pytest.warns(RuntimeWarning) as caught:
        prove(llm, [4, 1, 9, 30], params)
    (message,) = (str(w.message) for w in caught)
    assert message.startswith(f"decode of 2 rows runs without a graph: {said}")
    assert "trace" not in message
    assert decodes(llm) == [4, 1]
    assert llm.stats.fallbacks == {"not captured": 2}  # steps from five tokens to seven
    prove(llm, [4, 1, 9, 30], params)
    assert llm.stats.fallbacks == {"not captured": 4}
    assert llm.stats.replayed_steps == llm.stats.decode_steps - 4


@pytest.mark.usefixtures("few_prefills")
def test_a_failure_in_warm_up(small_model: GPT2, engine: str) -> None:
    """The others are captured all the same."""
    llm = graph_llm(small_model, engine, recorder=Failing("record", torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.warns(RuntimeWarning, match="decode of 2 rows") as caught:
        llm.warm_up()
    assert len(caught) == len(llm.core.samplers) == len(llm.core.failed)
    assert {key.rows for key in llm.core.graphs if key.columns == 1} == {1, 4}
    prove(llm, LENGTHS, PARAMS)


def test_beyond_the_ladder(small_model: GPT2, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G38: what is larger than any graph runs eagerly, is counted by reason, and goes into no smaller graph."""
    monkeypatch.setattr("nanoinfer.engine.graphs.PREFILL_TOKENS", 64)
    llm = graph_llm(small_model, engine, max_graph_batch=2)
    prove(llm, [70, 4, 9], greedy_rows(9, 5, 3))
    assert llm.stats.fallbacks == {"more rows than the largest graph has": 2, "a prefill of too many tokens": 1}
    assert decodes(llm) == [2, 1]
    assert llm.stats.replayed_steps == 6


def test_rows_of_the_largest_graph(small_model: GPT2, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a tenth of the free memory holds logits for; a number given by the user is his own business."""
    per_row = 12 * SMALL.padded_vocab + 16 * SMALL.inner
    for free, asked, rows in ((None, None, 64), (75 * per_row, None, 7), (75 * per_row, 9, 9), (None, 99, 64)):
        monkeypatch.setattr("nanoinfer.capacity.free_memory", lambda device, free=free: free)
        assert graph_llm(small_model, engine, max_batch=64, max_graph_batch=asked).core.rows == ladder(rows)


# Without graphs


def test_on_a_cpu(small_model: GPT2, engine: str) -> None:
    """It says so once, and counts every step."""
    with pytest.warns(RuntimeWarning, match=rf"engine {engine} runs as engine {engine[:-6]} does: a CPU") as told:
        llm = LLM(small_model, engine=engine, max_batch=4)
    assert len(told) == 1
    with llm:
        assert llm.core.lag == 0
        llm.warm_up()
        prove(llm, LENGTHS, PARAMS)
        assert llm.core.graphs == {}
        assert llm.stats.fallbacks == {"a CPU records no steps": llm.stats.decode_steps + llm.stats.prefill_steps}
        assert llm.stats.hit_rate == 0
