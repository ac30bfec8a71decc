"""What replays do, on a CPU, through the stand-in: padding, rows that come and go, late stops, sampling.

The names G.. and P.. are those of the course's list of defects. That every token is the oracle's is in test_rungs.py;
what only a GPU can show is in tests/gpu/test_graphs.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.engine import Sequence
from nanoinfer.engine.graphs import pick
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.verify import verify_tokens
from tests.conftest import prompts_of
from tests.engine.fake_graphed import (
    GRAPHED,
    LENGTHS,
    PARAMS,
    decodes,
    graph_llm,
    greedy_rows,
    nothing_is_held,
    prove,
    steps,
    watch,
)

# No graph is lost in silence: a warning is an error, but where a test expects it.
pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("no_collection")]


@pytest.fixture(params=GRAPHED)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


# What replays do


def test_captured_short_replayed_long(small_model: GPT2, engine: str) -> None:
    """G05, G06, G07: to the context's end, by graphs that were captured when the context was short, and the reverse."""
    for order in ([1, 2], [89, 60]), ([89, 60], [1, 2]):
        llm = graph_llm(small_model, engine, max_batch=2)
        for lengths in order:
            prove(llm, lengths, greedy_rows(11, 11))
        assert decodes(llm) == [2]
    prove(llm, [1, 1], greedy_rows(99, 99))  # and growing all the way
    assert decodes(llm) == [2]


def test_capture_with_a_full_pool(small_model: GPT2) -> None:
    """G32: what padding needs was set aside at the start."""
    llm = graph_llm(small_model, "paged-graph", kv_blocks=6, max_batch=5)
    free, blocks = [], llm.core.cache.blocks
    watch(llm.core.recorder, "record", lambda step: free.append(len(blocks.free)))
    prove(llm, [16, 16, 16], greedy_rows(16, 16, 16))
    assert decodes(llm) == [4]
    assert free[-1] == 0
    assert llm.stats.padding_rows == llm.stats.decode_steps


def test_a_draining_batch(small_model: GPT2, engine: str) -> None:
    """G31: from 12 rows to none, each step is replayed, and padding is what the ladder's arithmetic says."""
    llm, lengths = graph_llm(small_model, engine, max_batch=12), [1 + 7 * i % 32 for i in range(12)]
    prove(llm, lengths, greedy_rows(*range(1, 13)))
    sizes = [1, 2, 4, 8, 12]
    assert decodes(llm) == sizes[::-1]
    rows = sum(pick(sizes, batch) or 0 for batch in range(1, 12))
    assert llm.stats.replayed_steps == llm.stats.decode_steps == 11
    assert llm.stats.replayed_rows == rows
    assert llm.stats.padding_rows == rows - sum(range(1, 12))
    assert llm.stats.padding_tokens == (16 * 32 if engine == "dense-graph" else 256) - sum(lengths)
    assert not llm.stats.fallbacks


# Padding rows


def test_a_step_writes_where_it_should(small_model: GPT2, engine: str) -> None:
    """G01, G02, G03: of all slots, a padded step changes one of each live row, and the first of the padding's own."""
    llm = graph_llm(small_model, engine, max_batch=5, lag=0)
    core, cache, dense = llm.core, llm.core.cache, engine == "dense-graph"
    cache.k.fill_(7.0)
    cache.v.fill_(7.0)
    cache.begin = lambda slots: None  # the zeros that a dense slot begins with are no step's
    inside = (0, 3, 4) if dense else (0, 2, 4)  # layers, heads, channels: a slot is what remains

    def slots(s: Sequence, positions: range) -> list[tuple[int, int]]:
        if dense:
            return [(s.row, at) for at in positions]
        return [(cache.blocks.owned[s.row][at // 16], at % 16) for at in positions]

    before, number = [cache.k.clone(), cache.v.clone()], 0
    for number, _ in enumerate(steps(llm, [15, 1, 30], greedy_rows(20, 20, 20)), start=1):
        if not core.running:
            break
        after = [cache.k.clone(), cache.v.clone()]
        fed = [(s, range(s.cached - 1 if number > 1 else 0, s.cached)) for s in core.running]
        expected = {slot for s, positions in fed for slot in slots(s, positions)}
        for old, new in zip(before, after, strict=True):
            changed = {tuple(at) for at in (old != new).amax(inside).nonzero().tolist()}
            assert changed - {(5 if dense else 0, 0)} == expected  # the dummy row, the null block
        before = after
    assert number == 20
    assert decodes(llm) == [4]


@pytest.mark.parametrize("lag", [0, 3])
def test_late_stops(small_model: GPT2, engine: str, lag: int) -> None:
    """P08: tokens past a stop are dropped and counted, and no block is lost."""
    params = [replace(each, stop_token_ids=range(0, 211, 12)) for each in PARAMS]
    expected = LLM(small_model, engine="dense").generate(prompts_of(LENGTHS), params)
    llm = graph_llm(small_model, engine, lag=lag)
    core, cache = llm.core, llm.core.cache

    def padding(*_: object) -> None:
        """As a step is launched, live rows are the first ones, and the others are of nobody: G03."""
        count = len(core.running)
        assert sorted(s.row for s in core.running) == [*range(count)]
        assert core.state.row[count:].unique().tolist() == [4]
        assert not core.state.integers[:6, count:4].any()  # token 0 at position 0, at every step: P03
        assert not core.blocks or not cache.tables[count:].any()

    watch(core, "prefill", padding)
    watch(core, "decode", padding)
    done = llm.generate(prompts_of(LENGTHS), params)
    assert [(c.token_ids, c.finish_reason) for c in done] == [(c.token_ids, c.finish_reason) for c in expected]
    assert {c.finish_reason for c in done} == {"stop", "length"}
    nothing_is_held(llm)
    assert llm.stats.new_tokens == sum(len(c.token_ids) for c in expected)
    assert (llm.stats.dropped_tokens > 0) == (lag > 0)


def test_equal_prompts_share_within_their_first_step(small_model: GPT2) -> None:
    llm = graph_llm(small_model, "paged-graph", prefix_caching=True)
    llm.generate(prompts_of([70]) * 3, greedy_rows(3, 3, 3))
    assert llm.stats.cached_tokens == 2 * 64


# Sampling


def test_parameters_are_read_in_every_replay(small_model: GPT2, engine: str) -> None:
    """G20: temperatures, top-k, top-p and seeds of one graph change from row to row, and from call to call."""
    llm = graph_llm(small_model, engine, max_batch=2)
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
