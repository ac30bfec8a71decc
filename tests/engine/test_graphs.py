"""What replays do, on a CPU, through the stand-in: padding, rows that come and go, late stops, sampling.

The names G.. and P.. are those of the course's list of defects. That every token is the oracle's is in test_rungs.py;
what only a GPU can show is in tests/gpu/test_graphs.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.engine import Row
from nanoinfer.engine.graphs import pick
from nanoinfer.engine.sampling import SAMPLERS
from nanoinfer.engine.scheduler import Step
from nanoinfer.engine.state import Fetch
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import STD, prompts_of
from tests.engine.fake_graphed import (
    CONFIG,
    GRAPHED,
    LENGTHS,
    PARAMS,
    Recording,
    Rerun,
    decodes,
    engine_of,
    graph_llm,
    greedy_rows,
    live_bits,
    nothing_is_held,
    prove,
    runner_of,
    same,
    state_bits,
    steps,
    tokens,
    watch,
)

# No graph is lost in silence: a warning is an error, but where a test expects it.
pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("no_collection")]
GREEDY, SAMPLED, FILTERED, _ = SAMPLERS


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(CONFIG, seed=1, std=STD)


@pytest.fixture(params=GRAPHED)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


# What replays do


def test_captured_short_replayed_long(model: GPT2, engine: str) -> None:
    """G05, G06, G07: to the context's end, by graphs that were captured when the context was short, and the reverse."""
    for order in ([1, 2], [89, 60]), ([89, 60], [1, 2]):
        llm = graph_llm(model, engine, max_batch=2)
        for lengths in order:
            prove(llm, lengths, greedy_rows(11, 11))
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
    llm, lengths = graph_llm(model, engine, max_batch=12), [1 + 7 * i % 32 for i in range(12)]
    prove(llm, lengths, greedy_rows(*range(1, 13)))
    sizes = [1, 2, 4, 8, 12]
    assert decodes(llm) == sizes[::-1]
    rows = sum(pick(sizes, batch) or 0 for batch in range(1, 12))
    assert llm.stats.replayed_steps == llm.stats.decode_steps == 11
    assert llm.stats.replayed_rows == rows
    assert llm.stats.padding_rows == rows - sum(range(1, 12))
    assert llm.stats.padding_tokens == (16 * 32 if engine == "dense-graph" else 256) - sum(lengths)
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


# Padding rows


def test_a_step_writes_where_it_should(model: GPT2, engine: str) -> None:
    """G01, G02, G03: of all slots, a padded step changes one of each live row, and the first of the padding's own."""
    llm = graph_llm(model, engine, max_batch=5, lag=0)
    running, cache, dense = engine_of(llm), engine_of(llm).cache, engine == "dense-graph"
    cache.k.fill_(7.0)
    cache.v.fill_(7.0)
    cache.clear = lambda rows: None  # the zeros that a dense row begins with are no step's
    inside = (0, 3, 4) if dense else (0, 2, 4)  # layers, heads, channels: a slot is what remains

    def slots(row: Row, positions: range) -> list[tuple[int, int]]:
        if dense:
            return [(row.slot, at) for at in positions]
        return [(cache.blocks.owned[row.slot][at // 16], at % 16) for at in positions]

    before, number = [cache.k.clone(), cache.v.clone()], 0
    for number, _ in enumerate(steps(llm, [15, 1, 30], greedy_rows(20, 20, 20)), start=1):
        if not running.rows:
            break
        after = [cache.k.clone(), cache.v.clone()]
        fed = [(row, range(row.fed - 1 if number > 1 else 0, row.fed)) for row in running.rows]
        expected = {slot for row, positions in fed for slot in slots(row, positions)}
        for old, new in zip(before, after, strict=True):
            changed = {tuple(at) for at in (old != new).amax(inside).nonzero().tolist()}
            assert changed - {(5 if dense else 0, 0)} == expected  # the dummy row, the null block
        before = after
    assert number == 20
    assert decodes(llm) == [4]


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


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("kind", ["naive", *GRAPHED])
def test_late_stops(model: GPT2, kind: str, lag: int) -> None:
    """P08: tokens past a stop are dropped and counted, no block is lost, and who has left has none."""
    exact = LLM(model, engine="dense").generate(prompts_of(LENGTHS), PARAMS)
    stops = [
        replace(p, stop_token_ids=c.token_ids[len(c.token_ids) // 2 :][:1]) for p, c in zip(PARAMS, exact, strict=True)
    ]
    expected = LLM(model, engine="dense").generate(prompts_of(LENGTHS), stops)
    llm = graph_llm(model, kind, lag=lag) if kind in GRAPHED else LLM(model, engine=kind, max_batch=4)
    llm.core.lag = lag
    running, cache, blocks = engine_of(llm), engine_of(llm).cache, engine_of(llm).cache.blocks
    computed: list[int] = []

    def padding(*_: object) -> None:
        """As a step is launched, live rows are the first ones, and the others are of nobody: G03."""
        count = len(running.rows)
        assert [row.slot for row in running.rows] == [*range(count)]
        assert running.state.row[count:].unique().tolist() == [4]
        assert not running.state.integers[:6, count:4].any()  # token 0 at position 0, at every step: P03
        assert not blocks or not cache.tables[count:].any()

    def launch(step: Step) -> None:
        computed.append(len(step.going) + sum(part.complete for part in step.pieces))

    watch(running.runner, "prefill", padding)
    watch(running.runner, "decode", padding)
    watch(running.scheduler, "launch", launch)
    for _ in range(2):
        done: dict[int, Row] = {}
        for settled in steps(llm, LENGTHS, stops):
            done |= {row.request.index: row for row in settled}
            if blocks:
                owned = [block for row in blocks.owned for block in row]
                assert len(owned) == len(set(owned)) == blocks.allocator.blocks - 1 - blocks.allocator.free_blocks
                slots = {row.slot for row in running.rows}
                assert not any(row for slot, row in enumerate(blocks.owned) if slot not in slots)
        while running.busy:
            assert running.step() == []
        assert [tuple(done[i].token_ids) for i in range(8)] == [c.token_ids for c in expected]
        assert [done[i].finish_reason for i in range(8)] == [c.finish_reason for c in expected]
        nothing_is_held(llm)
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
