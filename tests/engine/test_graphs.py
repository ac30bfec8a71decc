"""Captured steps on a CPU, through the stand-in: keys, ladder, padding, what is kept, what moves, what fails.

The names G.. and P.. are those of the course's list of defects. What only a GPU can show is in test_graphs_gpu.py.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count, pairwise, product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.engine import Engine, Row
from nanoinfer.engine.graph_stats import GraphStats
from nanoinfer.engine.graphs import CudaRecorder, GraphRunner, Key, Replayable, ladder, pick
from nanoinfer.engine.sampling import SAMPLERS
from nanoinfer.engine.state import BatchState, Fetch
from nanoinfer.engine.step import decode_step
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import STD, prompts_of
from tests.engine.fake_graphed import (  # fmt: skip
    LENGTHS,
    PARAMS,
    Recording,
    Rerun,
    engine_of,
    graph_llm,
    greedy_rows,
    idle,
    interrupted,
    live_bits,
    prove,
    runner_of,
    same,
    state_bits,
    steps,
    tokens,
    watch,
)

# No graph is lost in silence: a warning is an error, but where a test expects it.
pytestmark = pytest.mark.filterwarnings("error")
GREEDY, SAMPLED, FILTERED, _ = SAMPLERS
KINDS = ["dense-graph", "paged-graph"]
CONFIG = ModelConfig(n_layer=2, n_head=3, n_embd=48, n_positions=100, vocab_size=211)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(CONFIG, seed=1, std=STD)


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def few_prefills(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up captures the ladder of decode steps, and few prefills: the fake takes some 30 ms each."""
    monkeypatch.setattr("nanoinfer.engine.graphs.PREFILL_TOKENS", 64)


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each capture collects garbage, which takes long in a process that has loaded as much as this one."""
    monkeypatch.setattr("nanoinfer.engine.graphs.gc", SimpleNamespace(collect=lambda: 0))


def decodes(llm: LLM) -> list[int]:
    """Rows of the captured decode steps, the least recently used first."""
    return [key.rows for key in runner_of(llm).graphs if key.columns == 1]


# The ladder


def test_ladder() -> None:
    """G30, G31: it ends in exactly the maximum, whatever that is, and a batch gets the smallest rung that holds it."""
    assert ladder(0) == []
    assert pick([], 1) is None
    for maximum in range(1, 1025):
        sizes = ladder(maximum)
        assert sizes[-1] == maximum
        assert sizes == sorted(set(sizes))
        smallest = [above for below, above in pairwise([0, *sizes]) for _ in range(below, above)]
        assert [pick(sizes, n) for n in range(1, maximum + 1)] == smallest
        assert pick(sizes, maximum + 1) is None


@pytest.mark.parametrize(
    "maximum, graphs, mean, worst", [(64, 11, 0.110, 0.29), (256, 19, 0.084, 0.29), (512, 23, 0.081, 0.29)]
)
def test_padding_of_the_ladder(maximum: int, graphs: int, mean: float, worst: float) -> None:
    """Which share of a step's rows is padding: the mean over all batch sizes, and the most from 16 rows on."""
    sizes = ladder(maximum)
    wasted = [1 - n / (pick(sizes, n) or 0) for n in range(1, maximum + 1)]
    assert len(sizes) == graphs
    assert sum(wasted) / maximum == pytest.approx(mean, abs=0.0005)
    assert max(wasted[15:]) == pytest.approx(worst, abs=0.005)


@pytest.mark.usefixtures("few_prefills")
def test_every_batch_hits_a_captured_key(model: GPT2, engine: str) -> None:
    """G31, G33: what was captured is what is looked up, for each batch size, and nothing else is ever captured."""
    llm = graph_llm(model, engine, max_batch=11)
    runner = runner_of(llm)
    llm.warm_up()
    captures = llm.stats.captures
    used = set()
    for batch in range(1, 12):
        for sampler in engine_of(llm).samplers:
            runner.decode(batch, 50, sampler)
            used.add(next(reversed(runner.graphs)))
    assert llm.stats.captures == captures
    assert used == {key for key in runner.graphs if key.columns == 1}
    assert llm.stats.replayed_steps == 11 * 4
    assert not llm.stats.fallbacks


# Keys, and how many are kept


def test_keys(model: GPT2, engine: str) -> None:
    """All that is baked is in the key: shape, read length, sampler."""
    llm = graph_llm(model, engine, read_multiple=32, prefill_chunk=40)
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
        assert {key for key in runner_of(llm).graphs if key.sampler is sampler} == expected
    assert len(runner_of(llm).graphs) == 3 * len(expected)


def test_the_least_recently_used_goes(model: GPT2, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoinfer.engine.graphs.KEPT", 3)
    llm = graph_llm(model, engine, max_batch=8)
    for batch, kept in [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (1, [2, 4, 1]), (8, [4, 1, 8]), (2, [1, 8, 2])]:
        runner_of(llm).decode(batch, 50, GREEDY)
        assert decodes(llm) == kept
    assert llm.stats.captures == 5
    prove(llm, LENGTHS, PARAMS)
    assert len(runner_of(llm).graphs) == 3


def test_one_graph_at_a_time(model: GPT2, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step drops the graph of the one before, and goes on right."""
    monkeypatch.setattr("nanoinfer.engine.graphs.KEPT", 1)
    prove(graph_llm(model, engine), LENGTHS, PARAMS)


# Tokens


@pytest.mark.parametrize("lag", [0, 2])
def test_tokens_are_the_oracle_s(model: GPT2, engine: str, lag: int) -> None:
    """Ragged, refilled, sampled and greedy; then once more, by the graphs that are there, and for other prompts."""
    llm = graph_llm(model, engine, lag=lag)
    prove(llm, LENGTHS, PARAMS)
    assert llm.stats.replayed_steps == llm.stats.decode_steps > 0
    assert llm.stats.replayed_prefills == llm.stats.prefill_steps > 1
    captures = llm.stats.captures
    prove(llm, LENGTHS, PARAMS)
    others = prompts_of(LENGTHS, seed=5)  # G12, G17: another input must give another output
    verify_tokens(llm.forward_logits, llm.generate(others, PARAMS), PARAMS)
    assert llm.stats.captures == captures == len(runner_of(llm).graphs)
    assert not llm.stats.fallbacks


PIECE = "a piece of a prompt, where prompts are captured whole"


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("chunk", [7, 20, 64])
def test_chunked_prefill(model: GPT2, engine: str, chunk: int, mixed: bool) -> None:
    """Pieces of prompts, beside rows that go on or without them, also the last one before the context's end.

    In pages they are replayed; a rectangle is captured for whole prompts, so that the others run eagerly, counted.
    """
    llm = graph_llm(model, engine, prefill_chunk=chunk, read_multiple=32, mixed=mixed)
    shared: list[bool] = []
    watch(runner_of(llm), "prefill", lambda going, *_: shared.append(bool(going)))
    lengths = [99, 3, 45, 80, 95]
    prove(llm, lengths, greedy_rows(1, 30, 20, 20, 5))
    assert any(shared) == mixed
    eagerly = llm.stats.prefill_steps - llm.stats.replayed_prefills
    assert llm.stats.fallbacks == ({PIECE: eagerly} if engine == "dense-graph" else {})
    assert (eagerly > 0) == (engine == "dense-graph")
    assert llm.stats.replayed_prefills > 0


def test_a_prefill_s_input_is_written_in_one_copy(model: GPT2, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the recording reads it: chunks, where they begin and end, and whose tokens are chosen."""
    llm = graph_llm(model, engine, lag=0)
    prove(llm, [4, 9, 30], greedy_rows(2, 2, 2))
    (captured,) = [captured for key, captured in runner_of(llm).graphs.items() if key.columns > 1]
    written: list[list[int]] = []
    copy = Tensor.copy_

    def noted(to: Tensor, values: Tensor, **settings: Any) -> Tensor:
        if to is captured.packed:
            written.append(values.tolist())
        return copy(to, values, **settings)

    monkeypatch.setattr(Tensor, "copy_", noted)
    prove(llm, [7, 2, 30], greedy_rows(2, 2, 2))
    assert written == [captured.packed.tolist()]
    assert llm.stats.captures == len(runner_of(llm).graphs)
    assert llm.stats.padding_tokens == 2 * (128 if engine == "dense-graph" else 64) - (4 + 9 + 30) - (7 + 2 + 30)


def test_captured_short_replayed_long(model: GPT2, engine: str) -> None:
    """G05, G06, G07: to the context's end, by graphs that were captured when the context was short, and the reverse."""
    for order in ((1, 2), (89, 60)), ((89, 60), (1, 2)):
        llm = graph_llm(model, engine, max_batch=2)
        for lengths in order:
            prove(llm, list(lengths), greedy_rows(11, 11))
        assert decodes(llm) == [2]
        prove(llm, [1, 1], greedy_rows(99, 99))  # and growing all the way
        assert decodes(llm) == [2]


def test_capture_with_a_full_pool(model: GPT2) -> None:
    """G32: what padding needs was set aside at the start."""
    llm = graph_llm(model, "paged-graph", kv_blocks=6, max_batch=5)
    free, blocks = [], engine_of(llm).cache.blocks
    watch(runner_of(llm).recorder, "record", lambda step: free.append(blocks.allocator.free_blocks))
    prove(llm, [16, 16, 16], greedy_rows(16, 16, 16))
    assert decodes(llm) == [4]
    assert free[-1] == 0
    assert llm.stats.padding_rows == llm.stats.decode_steps


def test_a_draining_batch(model: GPT2, engine: str) -> None:
    """G31: from 12 rows to none, each step is replayed, and padding is what the ladder's arithmetic says."""
    llm = graph_llm(model, engine, max_batch=12)
    prove(llm, [1 + 7 * i % 32 for i in range(12)], greedy_rows(*range(1, 13)))
    sizes = [1, 2, 4, 8, 12]
    assert decodes(llm) == sizes[::-1]
    rows = sum(pick(sizes, batch) or 0 for batch in range(1, 12))
    assert llm.stats.replayed_steps == llm.stats.decode_steps == 11
    assert llm.stats.replayed_rows == rows
    assert llm.stats.padding_rows == rows - sum(range(1, 12))
    assert not llm.stats.fallbacks


def reluctant(llm: LLM) -> None:
    """Admits at the start, and then not before some steps have passed, so that a batch shrinks and grows again."""
    scheduler = engine_of(llm).scheduler
    admit = scheduler._admit
    scheduler._admit = lambda row: llm.stats.decode_steps in {0, 5} and admit(row)  # type: ignore[method-assign]


def test_bits_are_those_of_the_eager_step_padded_alike(model: GPT2, engine: str) -> None:
    """G03, G04: four rows, three, and four again, in one graph: state and live memory are equal after every step."""
    params = [
        SamplingParams(temperature=0.9, seed=i, max_tokens=n, ignore_eos=True) for i, n in enumerate((9, 3, 9, 9, 6))
    ]
    replayed, called = (graph_llm(model, engine, recorder=kind(), lag=0) for kind in (Recording, Rerun))
    batches: list[int] = []
    watch(runner_of(replayed), "decode", lambda batch, *_: batches.append(batch))
    for llm in (replayed, called):
        reluctant(llm)
        for memory in (engine_of(llm).cache.k, engine_of(llm).cache.v):
            memory.zero_()  # what nobody writes is compared as well
    lengths = [4, 9, 1, 16, 7]
    for _ in zip(steps(replayed, lengths, params), steps(called, lengths, params), strict=True):
        assert same(live_bits(replayed), live_bits(called))
        assert same(state_bits(replayed), state_bits(called))
    assert batches == [4, 4, 3, 3, 3, 4, 4, 4, 1, 1]
    assert sorted(set(decodes(replayed))) == [1, 4]


def test_three_replays_give_the_same_bits(model: GPT2, engine: str) -> None:
    llm = graph_llm(model, engine, lag=0)
    running = steps(llm, [4, 9, 30], PARAMS[1:4])
    next(running), next(running)
    (graph,) = [captured.graph for key, captured in runner_of(llm).graphs.items() if key.columns == 1]
    before, results = state_bits(llm), []
    with torch.inference_mode():
        for _ in range(3):
            engine_of(llm).state.integers[:, :-1].copy_(before[0])
            graph.replay()
            results.append([*state_bits(llm), *live_bits(llm)])
    assert same(results[0], results[1])
    assert same(results[0], results[2])
    assert not same(results[0][:1], before[:1])


# Padding rows


def test_a_step_writes_where_it_should(model: GPT2, engine: str) -> None:
    """G01, G02, G03: of all slots, the last one included, a padded step changes one of each live row."""
    llm = graph_llm(model, engine, max_batch=5, lag=0)
    running, cache = engine_of(llm), engine_of(llm).cache
    cache.k.fill_(7.0)
    cache.v.fill_(7.0)
    cache.clear = lambda rows: None  # the zeros that a dense row begins with are no step's
    inside = (0, 3, 4) if engine == "dense-graph" else (0, 2, 4)  # layers, heads, channels: a slot is what remains

    def slots(row: Row, positions: range) -> list[tuple[int, int]]:
        if engine == "dense-graph":
            return [(row.slot, at) for at in positions]
        return [(cache.blocks.owned[row.slot][at // 16], at % 16) for at in positions]

    before, number = live_bits(llm), 0
    for number, _ in enumerate(steps(llm, [15, 1, 30], greedy_rows(20, 20, 20)), start=1):
        if not running.rows:
            break
        after = live_bits(llm)
        fed = [(row, range(row.fed - 1 if number > 1 else 0, row.fed)) for row in running.rows]
        expected = {slot for row, positions in fed for slot in slots(row, positions)}
        for old, new in zip(before, after, strict=True):
            assert {tuple(at) for at in (old != new).amax(inside).nonzero().tolist()} == expected
        before = after
    assert number == 20
    assert decodes(llm) == [4]


def test_rows_of_nobody_stay_as_made(model: GPT2, engine: str) -> None:
    """Promise 4: token 0 at position 0 of the dummy row, step after step; and no live row is taken for one."""
    llm = graph_llm(model, engine, max_batch=8, lag=0)
    state = engine_of(llm).state
    for _ in steps(llm, [1, 1, 1, 1, 1], [PARAMS[1]] * 5):
        rows = len(engine_of(llm).rows)
        assert not state.integers[:6, rows:8].any()
        assert state.row.tolist() == [*range(rows), *[8] * (9 - rows)]
    assert decodes(llm) == [8]


def test_garbage_in_rows_of_nobody(model: GPT2, engine: str) -> None:
    """G03: whatever stands in rows that are not live, the live ones' tokens are the same."""
    params = [SamplingParams(temperature=0.9, top_k=k, seed=3, max_tokens=30, ignore_eos=True) for k in (0, 20, 0)]
    expected = tokens(graph_llm(model, engine), [4, 9, 30], params)
    llm = graph_llm(model, engine, max_batch=4)
    state, noise = engine_of(llm).state, torch.Generator().manual_seed(0)

    def litter(*_: object) -> None:
        state.integers[:6, 3:] = torch.randint(0, 100, (6, 2), generator=noise)
        state.live[3:] = 0
        state.floats[:, 3:] = torch.tensor([[float("nan"), float("inf")]] * 2)

    watch(runner_of(llm), "decode", litter)
    assert tokens(llm, [4, 9, 30], params) == expected
    assert decodes(llm) == [4]


def test_neighbours_change_nothing(model: GPT2, engine: str) -> None:
    """Three rows of a graph of four: beside padding, beside one neighbour, and beside another."""
    three = [SamplingParams(temperature=0.9, seed=i, max_tokens=20, ignore_eos=True) for i in range(3)]
    llm = graph_llm(model, engine)
    expected = tokens(llm, [4, 9, 1], three)
    for neighbour in (replace(PARAMS[5], max_tokens=20), replace(PARAMS[7], max_tokens=20)):
        assert tokens(llm, [4, 9, 1, 30], [*three, neighbour])[:3] == expected
    assert set(decodes(llm)) == {4}


def test_identical_prompts_give_identical_rows(model: GPT2, engine: str) -> None:
    """P10, in a padded graph."""
    llm = graph_llm(model, engine, max_batch=8)
    params = SamplingParams(temperature=0.9, seed=4, max_tokens=20, ignore_eos=True)
    assert len({c.token_ids for c in llm.generate(prompts_of([20]) * 7, params)}) == 1
    assert llm.stats.padding_rows == llm.stats.decode_steps


@pytest.mark.parametrize("lag", [0, 3])
def test_poison(model: GPT2, engine: str, lag: int) -> None:
    """P01, P02, P03, P08, G02: all that is not written holds poison, from the start and again when a row leaves."""
    llm = graph_llm(model, engine, lag=lag)
    expected = tokens(llm, LENGTHS, PARAMS)
    llm = graph_llm(model, engine, lag=lag)
    cache = engine_of(llm).cache
    cache.k.fill_(torch.nan)
    cache.v.fill_(torch.nan)

    def leave(rows: list[Row]) -> None:
        slots = [row.slot for row in rows]
        where = slots if engine == "dense-graph" else [b for slot in slots for b in cache.blocks.owned[slot]]
        cache.k[:, where] = torch.nan
        cache.v[:, where] = torch.nan

    watch(engine_of(llm).scheduler, "remove", leave)
    assert tokens(llm, LENGTHS, PARAMS) == expected
    assert llm.stats.padding_rows > 0
    if engine == "paged-graph":
        assert not cache.tables[-1].any()  # where padding writes, still


# Captures while rows are live


@pytest.mark.usefixtures("few_prefills")
def test_warm_up_in_the_middle_of_a_generation(model: GPT2, engine: str) -> None:
    """G15: state and live memory are as before, and so are the tokens that follow."""
    llm = graph_llm(model, engine)

    def warm_up() -> None:
        before = [*state_bits(llm), *live_bits(llm)]
        llm.warm_up()
        assert same([*state_bits(llm), *live_bits(llm)], before)

    done = interrupted(llm, [4, 9, 30], PARAMS[1:4], 7, warm_up)
    verify_tokens(llm.forward_logits, done, PARAMS[1:4])
    assert llm.stats.captures == len(runner_of(llm).graphs) > 20


def test_captures_touch_nobody(model: GPT2, engine: str) -> None:
    """G15: with rows live, a warm-up sees none of them, and neither it nor the recording changes anything of theirs."""
    llm = graph_llm(model, engine, read_multiple=32)
    running, capture, live = engine_of(llm), runner_of(llm)._capture, []

    def nobody(step: object) -> None:
        assert not running.state.integers[:6].any()
        assert bool((running.state.row == running.state.dummy).all())

    def watched(keys: list[Key]) -> None:
        live.append(int(running.state.live[:-1].sum()))
        before = [*state_bits(llm), *live_bits(llm)]
        capture(keys)
        assert same([*state_bits(llm), *live_bits(llm)], before)

    watch(runner_of(llm).recorder, "warm", nobody)
    runner_of(llm)._capture = watched  # type: ignore[method-assign,assignment]
    prove(llm, LENGTHS, PARAMS)
    assert max(live) == 4
    assert len(live) > 6


def test_warm_up(model: GPT2, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G23: all steps are warmed before the first is recorded, largest first; after it, no request waits."""
    monkeypatch.setattr("nanoinfer.engine.graphs.PREFILL_TOKENS", 128)
    llm = graph_llm(model, engine, max_batch=5, read_multiple=64)
    runner = runner_of(llm)
    recorder: Any = runner.recorder
    told: list[tuple[int, int]] = []
    llm.warm_up(lambda done, of: told.append((done, of)))
    names = [name for name, _ in recorder.asked]
    count = len(runner.graphs)
    assert names == ["warm"] * count + ["record"] * count
    assert told == [(n, count) for n in range(1, count + 1)]
    assert [key.rows for key in runner.graphs] == sorted((key.rows for key in runner.graphs), reverse=True)
    assert {key.rows for key in runner.graphs if key.columns == 1} == {1, 2, 4, 5}
    prefills = {(key.rows, key.columns) for key in runner.graphs if key.columns > 1}
    paged, columns = engine == "paged-graph", (16, 32, 64, 128)
    ladders = product((1, 5) if paged else (1, 2, 4, 8), columns)
    assert prefills == {(rows, columns) for rows, columns in ladders if paged or rows * columns <= 128}
    assert {key.sampler for key in runner.graphs} == set(engine_of(llm).samplers)
    assert llm.stats.captures == count
    assert llm.stats.capture_s > 0
    for lengths in ([1], [90], [3, 3], [9, 1, 16], [5, 5, 5, 5], [1, 2, 3, 4, 5]):
        for one in ({"temperature": 0}, {"seed": 3}, {"top_k": 9, "seed": 3}, {"logprobs": 2, "seed": 3}):
            prove(llm, lengths, SamplingParams(max_tokens=9, ignore_eos=True, **one))
    llm.warm_up()
    assert llm.stats.captures == count
    assert not llm.stats.fallbacks


def test_warm_up_captures_no_more_than_is_kept(model: GPT2, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the ladders have beyond that is captured when it is first asked for."""
    monkeypatch.setattr("nanoinfer.engine.graphs.KEPT", 8)
    llm = graph_llm(model, engine)
    llm.warm_up()
    assert llm.stats.captures == len(runner_of(llm).graphs) == 8


def test_two_llms(model: GPT2, engine: str) -> None:
    """One closed, the other goes on; and each has a state and a memory of its own."""
    first, second = (graph_llm(model, engine) for _ in range(2))
    expected = tokens(first, LENGTHS, PARAMS)

    def other() -> None:
        assert tokens(first, LENGTHS, PARAMS) == expected
        first.close()
        gc.collect()

    done = interrupted(second, [4, 9, 30], PARAMS[1:4], 7, other)
    verify_tokens(second.forward_logits, done, PARAMS[1:4])
    assert tokens(second, LENGTHS, PARAMS) == expected


# Addresses


@pytest.mark.parametrize(
    "engine, what", [*product(KINDS, ["k", "v", "integers", "weights"]), ("paged-graph", "tables")]
)
def test_a_tensor_that_has_moved(engine: str, what: str) -> None:
    """G11, G14, G16: graphs that knew it are dropped with one warning, and new ones are captured."""
    model = random_model(CONFIG, seed=1, std=STD)
    llm = graph_llm(model, engine)
    prove(llm, LENGTHS, PARAMS)
    graphs, running = list(runner_of(llm).graphs.values()), engine_of(llm)
    cache: Any = running.cache
    if what == "weights":
        old = model.wte.weight.data
        model.wte.weight.data = old.clone()
    elif what == "integers":
        old = running.state.integers
        running.state = running.runner.state = BatchState(old.clone(), running.state.floats)
    else:
        old = getattr(cache, what)
        setattr(cache, what, old.clone())
    with torch.inference_mode():
        old.fill_(-1)  # who still reads it is seen
    with pytest.warns(RuntimeWarning) as caught:
        prove(llm, LENGTHS, PARAMS)
    assert [str(w.message) for w in caught] == ["all graphs are dropped: a tensor that they knew has moved"]
    assert not any(captured in graphs for captured in runner_of(llm).graphs.values())
    prove(llm, LENGTHS, PARAMS)
    assert llm.stats.replayed_steps == llm.stats.decode_steps


def change_one(model: GPT2) -> None:
    for weight in model.layers[1].mlp_proj:
        weight.data = weight.data.clone()


CHANGES: dict[str, Callable[[GPT2], object]] = {
    "one layer": change_one,
    "the norm at the end": lambda model: setattr(model.ln_f.bias, "data", model.ln_f.bias.data.clone()),
    "the positions": lambda model: setattr(model.wpe.weight, "data", model.wpe.weight.data.clone()),
    "replaced": lambda model: setattr(model.ln_f, "weight", torch.nn.Parameter(model.ln_f.weight.clone())),
    "half and back": lambda model: model.half().float(),
    "to": lambda model: model.to(torch.float64).to(torch.float32),
}


@pytest.mark.parametrize("at", [0, 5])
@pytest.mark.parametrize("change", CHANGES)
def test_any_weight_that_has_moved(engine: str, change: str, at: int) -> None:
    """Between two generations it is seen at once; within one, a layer's after as many steps as there are layers."""
    model = random_model(CONFIG, seed=1, std=STD)
    llm = graph_llm(model, engine)
    prove(llm, LENGTHS, PARAMS)
    old = list(runner_of(llm).graphs.values())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if at == 0:
            CHANGES[change](model)
            prove(llm, LENGTHS, PARAMS)
        else:
            interrupted(llm, [4], greedy_rows(20), at, partial(CHANGES[change], model))
    assert [str(w.message) for w in caught] == ["all graphs are dropped: a tensor that they knew has moved"]
    assert not any(captured in old for captured in runner_of(llm).graphs.values())
    prove(llm, LENGTHS, PARAMS)


def test_a_pool_ends_with_its_last_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses to capture into a pool without graphs in which a tensor still lives: a new one is begun then."""
    handles, pools = count(), []

    def graph(recorded: object, pool: int, stream: None, capture_error_mode: str) -> nullcontext[None]:
        assert capture_error_mode == "thread_local"  # what other threads do ends no capture
        pools.append(pool)
        return nullcontext()

    def step() -> None:
        if len(pools) == 5:
            raise RuntimeError("a capture that fails")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (), {}))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    recorder = CudaRecorder(torch.device("cuda"))
    kept = [recorder.record(step) for _ in range(3)]
    del kept[:2]
    kept.append(recorder.record(step))
    kept.clear()
    with pytest.raises(RuntimeError, match="fails"):
        recorder.record(step)
    kept.append(recorder.record(step))
    assert pools == [0, 0, 0, 0, 1, 2]


# Failures


class Failing(Recording):
    """Raises at a warm-up or at a recording, for the decode steps of so many rows."""

    def __init__(self, where: str, error: BaseException, rows: int = 2) -> None:
        super().__init__()
        self.where, self.error, self.rows = where, error, rows

    def _fail(self, where: str, step: Any) -> None:
        if where == self.where and getattr(step, "func", None) is decode_step and step.args[3] == self.rows:
            raise self.error

    def warm(self, step: Callable[[], object]) -> None:
        super().warm(step)  # what it has written by then is put back, too
        self._fail("warm", step)

    def record(self, step: Callable[[], object]) -> Replayable:
        self._fail("record", step)
        return super().record(step)


@pytest.mark.parametrize("where", ["warm", "record"])
@pytest.mark.parametrize(
    "error, said",
    [
        (RuntimeError("no such kernel\nand a long trace"), "RuntimeError: no such kernel"),
        (torch.OutOfMemoryError("CUDA out of memory"), "OutOfMemoryError: CUDA out of memory"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_failure_costs_one_key(model: GPT2, engine: str, where: str, error: Exception, said: str) -> None:
    """One warning names key and cause; that step runs eagerly, and is counted; all others are replayed."""
    llm = graph_llm(model, engine, recorder=Failing(where, error))
    params = greedy_rows(9, 2, 7, 5)
    with pytest.warns(RuntimeWarning) as caught:
        prove(llm, [4, 1, 9, 30], params)
    (message,) = [str(w.message) for w in caught]
    assert message.startswith(f"decode of 2 rows runs without a graph: {said}")
    assert "trace" not in message
    assert decodes(llm) == [4, 1]
    assert llm.stats.fallbacks == {"not captured": 2}  # steps from five tokens to seven
    prove(llm, [4, 1, 9, 30], params)
    assert llm.stats.fallbacks == {"not captured": 4}
    assert llm.stats.replayed_steps == llm.stats.decode_steps - 4


@pytest.mark.usefixtures("few_prefills")
def test_a_failure_in_warm_up(model: GPT2, engine: str) -> None:
    """The others are captured all the same."""
    whole = graph_llm(model, engine)
    whole.warm_up()
    llm = graph_llm(model, engine, recorder=Failing("record", torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.warns(RuntimeWarning, match="decode of 2 rows") as caught:
        llm.warm_up()
    assert len(caught) == len(engine_of(llm).samplers)

    def shapes(of: LLM, keys: Iterable[Key]) -> set[tuple[int, ...]]:  # each LLM has a sampler of its own
        return {(*key[:3], engine_of(of).samplers.index(key.sampler)) for key in keys}

    failed = shapes(llm, runner_of(llm).failed)
    assert shapes(whole, runner_of(whole).graphs) - shapes(llm, runner_of(llm).graphs) == failed
    prove(llm, LENGTHS, PARAMS)


@pytest.mark.usefixtures("few_prefills")
def test_an_interrupt_in_warm_up(model: GPT2, engine: str) -> None:
    """Ctrl-C is no failure of a key: it goes through, leaves all rows as they were, and costs no graph for ever."""
    llm = graph_llm(model, engine)

    def warm_up() -> None:
        runner_of(llm).recorder = Failing("warm", KeyboardInterrupt(), rows=1)
        before = [*state_bits(llm), *live_bits(llm)]
        with pytest.raises(KeyboardInterrupt):
            llm.warm_up()
        assert same([*state_bits(llm), *live_bits(llm)], before)
        runner_of(llm).recorder = Recording()

    done = interrupted(llm, [4, 9, 30], PARAMS[1:4], 7, warm_up)
    verify_tokens(llm.forward_logits, done, PARAMS[1:4])
    llm.warm_up()
    assert not runner_of(llm).failed


def test_an_interrupt_in_a_generation(model: GPT2, engine: str) -> None:
    llm = graph_llm(model, engine, recorder=Failing("record", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts_of([4, 1, 9, 30]), greedy_rows(9, 2, 7, 5))
    idle(llm)
    assert not engine_of(llm).state.integers[:6, :4].any()
    runner_of(llm).recorder = Recording()
    prove(llm, LENGTHS, PARAMS)


def test_beyond_the_ladder(model: GPT2, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G38: what is larger than any graph runs eagerly, is counted by reason, and goes into no smaller graph."""
    monkeypatch.setattr("nanoinfer.engine.graphs.PREFILL_TOKENS", 64)
    llm = graph_llm(model, engine, max_graph_batch=2)
    prove(llm, [70, 4, 9], greedy_rows(9, 5, 3))
    assert llm.stats.fallbacks == {"more rows than the largest graph has": 2, "a prefill of too many tokens": 1}
    assert decodes(llm) == [2, 1]
    assert llm.stats.replayed_steps == 6


def test_rows_of_the_largest_graph(model: GPT2, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a tenth of the free memory holds logits for; a number given by the user is his own business."""
    per_row = 12 * CONFIG.padded_vocab + 16 * CONFIG.inner
    for free, asked, rows in ((None, None, 64), (75 * per_row, None, 7), (75 * per_row, 9, 9), (None, 99, 64)):
        monkeypatch.setattr("nanoinfer.engine.graphs.free_memory", lambda device, free=free: free)
        assert runner_of(graph_llm(model, engine, max_batch=64, max_graph_batch=asked)).rows == ladder(rows)


# Without graphs


@pytest.mark.parametrize("settings", [{"max_rows": 0, "recorder": Recording()}, {"max_rows": 4, "recorder": None}])
def test_turned_off(model: GPT2, engine: str, settings: dict[str, Any]) -> None:
    """The same class with an empty dict."""
    llm = graph_llm(model, engine)
    running, stats = engine_of(llm), GraphStats()

    def make(model: GPT2, cache: Any, state: BatchState) -> GraphRunner:
        return GraphRunner(model, cache, state, max_len=100, stats=stats, **settings)

    llm.core = Engine(model, running.cache, 4, stats, runner=make)
    llm.warm_up()
    prove(llm, LENGTHS, PARAMS)
    assert runner_of(llm).graphs == {}
    assert stats.captures == stats.replayed_steps == stats.padding_rows == 0
    assert not stats.fallbacks  # nothing was to be captured, so nothing fell back


def test_on_a_cpu(model: GPT2, engine: str) -> None:
    """It says so once, and counts every step."""
    with pytest.warns(RuntimeWarning, match=rf"engine {engine} runs as engine {engine[:-6]} does: a CPU") as told:
        llm = LLM(model, engine=engine, max_batch=4)
    assert len(told) == 1
    with llm:
        assert llm.core.lag == 0
        llm.warm_up()
        prove(llm, LENGTHS, PARAMS)
        assert runner_of(llm).graphs == {}
        assert llm.stats.fallbacks == {"a CPU records no steps": llm.stats.decode_steps + llm.stats.prefill_steps}
        assert llm.stats.hit_rate == 0
    with pytest.raises(RuntimeError, match="closed"):
        llm.warm_up()


# The host behind the device


@pytest.mark.parametrize("lag", [0, 1, 2, 3])
def test_late_stops(model: GPT2, engine: str, lag: int) -> None:
    """P08: tokens past a stop are dropped and counted, no block is lost, and who has left has none."""
    exact = LLM(model, engine=engine.removesuffix("-graph")).generate(prompts_of(LENGTHS), PARAMS)
    stops = [
        SamplingParams(**{**vars(p), "stop_token_ids": c.token_ids[len(c.token_ids) // 2 :][:1]})
        for p, c in zip(PARAMS, exact, strict=True)
    ]
    expected = LLM(model, engine=engine.removesuffix("-graph")).generate(prompts_of(LENGTHS), stops)
    llm = graph_llm(model, engine, lag=lag)
    running, cache, blocks = engine_of(llm), engine_of(llm).cache, engine_of(llm).cache.blocks
    computed: list[int] = []

    def padding(*_: object) -> None:
        """As a step is launched, live rows are the first ones, and the others are of nobody: G03."""
        count = len(running.rows)
        assert [row.slot for row in running.rows] == [*range(count)]
        assert running.state.row[count:].unique().tolist() == [4]
        if engine == "paged-graph":
            assert not cache.tables[count:].any()

    watch(runner_of(llm), "prefill", padding)
    watch(runner_of(llm), "decode", padding)
    watch(
        running.scheduler,
        "launch",
        lambda step: computed.append(len(step.going) + sum(part.complete for part in step.pieces)),
    )
    for _ in range(2):
        done: dict[int, Row] = {}
        for settled in steps(llm, LENGTHS, stops):
            done |= {row.request.index: row for row in settled}
            if engine == "paged-graph":
                owned = [block for row in blocks.owned for block in row]
                assert len(owned) == len(set(owned)) == blocks.allocator.blocks - 1 - blocks.allocator.free_blocks
                slots = {row.slot for row in running.rows}
                assert not any(row for slot, row in enumerate(blocks.owned) if slot not in slots)
        while running.busy:
            assert running.step() == []
        assert [tuple(done[i].token_ids) for i in range(8)] == [c.token_ids for c in expected]
        assert [done[i].finish_reason for i in range(8)] == [c.finish_reason for c in expected]
        if engine == "paged-graph":
            assert blocks.allocator.free_blocks == blocks.allocator.blocks - 1
            assert blocks.reserved == 0  # and none is still promised to anybody
    assert llm.stats.new_tokens == 2 * sum(len(c.token_ids) for c in expected)
    assert sum(computed) == llm.stats.new_tokens + llm.stats.dropped_tokens
    assert (llm.stats.dropped_tokens > 0) == (lag > 0)
    assert llm.stats.dropped_tokens <= 2 * lag * len(stops)


def test_a_result_is_overwritten_and_fetched_in_time(model: GPT2, engine: str) -> None:
    """G13: what a step returns is a view of the state, which the next step overwrites; the host's copy stays."""
    llm = graph_llm(model, engine, lag=0)
    params = [SamplingParams(temperature=2.0, seed=i, max_tokens=9, ignore_eos=True) for i in range(4)]
    running = steps(llm, [4, 1, 9, 30], params)
    next(running)
    first = runner_of(llm).decode(4, 40, SAMPLED)
    values, fetch = first.tolist(), Fetch(first)
    second = runner_of(llm).decode(4, 40, SAMPLED)
    assert first.tolist() == second.tolist() != values
    assert fetch.wait() == values


# Sampling


@pytest.fixture(scope="module")
def flat_model() -> GPT2:
    """All logits are 0, whatever it reads: tokens show the noise alone."""
    model = random_model(CONFIG, seed=1, std=STD)
    model.wte.weight.data.zero_()
    return model


def test_noise_is_new_in_every_replay(flat_model: GPT2, engine: str) -> None:
    """G18, G19: 64 replays of flat logits; another seed gives other tokens, and the same one the same."""
    llm = graph_llm(flat_model, engine, max_batch=1)
    first, again, other = (
        llm.generate(prompts_of([4]), SamplingParams(seed=seed, max_tokens=65, ignore_eos=True))[0].token_ids
        for seed in (1, 1, 2)
    )
    assert decodes(llm) == [1]
    assert len(set(first)) > 30
    assert first == again
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 10


def test_parameters_are_read_in_every_replay(model: GPT2, engine: str) -> None:
    """G20: temperatures, top-k, top-p and seeds of one graph change from row to row, and from call to call."""
    llm = graph_llm(model, engine, max_batch=2)
    texts = set()
    for one in ({"temperature": 0.1}, {"temperature": 3.0}, {"top_k": 1}, {"top_k": 100}, {"top_p": 0.1}, {"seed": 9}):
        settings: dict[str, Any] = {"temperature": 1.0, "top_k": 150, "seed": 1, "max_tokens": 16, **one}
        params = [
            SamplingParams(ignore_eos=True, **settings),
            SamplingParams(top_k=99, seed=7, max_tokens=16, ignore_eos=True),
        ]
        done = llm.generate(prompts_of([4, 4]), params)
        verify_tokens(llm.forward_logits, done, params)
        texts.add(done[0].token_ids)
    assert decodes(llm) == [2]
    assert len(texts) >= 5


def test_the_comparison_can_fail(model: GPT2, engine: str) -> None:
    """G05: with one sampling parameter baked as a number, the proof says so."""
    llm = graph_llm(model, engine)

    def baked(logits: Tensor, rows: BatchState) -> Tensor:
        return (logits / float(PARAMS[1].temperature)).argmax(-1)

    engine_of(llm).samplers = type(SAMPLERS)(baked, baked, baked)
    done = llm.generate(prompts_of([4, 9]), PARAMS[1:3])
    with pytest.raises(AssertionError, match="the oracle chooses"):
        verify_tokens(llm.forward_logits, done, PARAMS[1:3])
