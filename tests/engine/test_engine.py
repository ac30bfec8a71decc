"""The loop: rows that come, go and are refilled; stops; results in order; and an engine that survives everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.engine import Engine, Row
from nanoinfer.engine.state import BatchState, Fetch
from nanoinfer.config import ENGINES
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import SMALL, STD, prompts_of

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
MIXED = [
    SamplingParams(temperature=0, max_tokens=9),
    SamplingParams(temperature=0.8, max_tokens=17, seed=5),
    SamplingParams(temperature=1.0, top_k=20, top_p=0.9, max_tokens=3, seed=6),
    SamplingParams(temperature=1.2, top_p=0.7, max_tokens=14, seed=2**40),
    SamplingParams(temperature=0, max_tokens=1),
]


@pytest.fixture(params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    """The loop is one, so each of its tests runs with every engine."""
    return request.param


@pytest.fixture
def make(small_model: GPT2, engine_name: str) -> Callable[..., LLM]:
    """An LLM over the small model, by its settings."""
    return lambda **settings: LLM(small_model, engine=engine_name, **settings)


@pytest.fixture
def llm(make: Callable[..., LLM]) -> LLM:
    return make(max_batch=3)


def engine_of(llm: LLM, max_batch: int, lag: int = 0) -> Engine:
    """The engine itself: `LLM` makes it anew for each call, or once where it replays graphs."""
    if llm.engine.endswith("-graph"):
        engine = LLM(llm.model, engine=llm.engine, max_batch=max_batch).graph_engine
        assert engine is not None
        engine.lag = lag
        return engine
    return Engine(llm.model, llm._spec.make([SMALL.n_positions] * max_batch), max_batch, lag=lag)


def test_more_prompts_than_rows(llm: LLM) -> None:
    """Rows are refilled as they end; results come in the order of the prompts, each by its own settings."""
    prompts = prompts_of([4, 1, 9, 2, 30])
    done = llm.generate(prompts, MIXED)
    assert [c.index for c in done] == [0, 1, 2, 3, 4]
    assert [c.prompt_token_ids for c in done] == [tuple(p) for p in prompts]
    assert [len(c.token_ids) for c in done] == [p.max_tokens for p in MIXED]
    print(verify_tokens(llm.forward_logits, done, MIXED))
    assert llm.stats.prefill_steps > 1


@pytest.mark.parametrize("max_batch", [1, 2, 5])
def test_tokens_do_not_depend_on_company(make: Callable[..., LLM], max_batch: int) -> None:
    """Promise 3: the same tokens alone, in another batch size, and in another order."""
    prompts = prompts_of([4, 1, 9, 2, 30])
    alone = [make().generate(p, s)[0].token_ids for p, s in zip(prompts, MIXED, strict=True)]
    together = make(max_batch=max_batch).generate(prompts, MIXED)
    backwards = make(max_batch=max_batch).generate(prompts[::-1], MIXED[::-1])
    assert [c.token_ids for c in together] == alone
    assert [c.token_ids for c in backwards] == alone[::-1]


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_host_behind_the_device(make: Callable[..., LLM], lag: int) -> None:
    """A host that looks at tokens some steps late gives the same tokens, and drops what ran over a stop."""
    prompts = prompts_of([4, 1, 9, 2, 30])
    exact = make(max_batch=2).generate(prompts, MIXED)
    stops = [SamplingParams(**{**vars(p), "stop_token_ids": c.token_ids[len(c.token_ids) // 2 :][:1]})
             for p, c in zip(MIXED, exact, strict=True)]  # fmt: skip
    llm = make(max_batch=2)
    expected = llm.generate(prompts, stops)
    engine = engine_of(llm, 2, lag)
    rows: dict[int, Row] = {}
    for settled in engine.generate(llm.requests(prompts, stops)):
        rows |= {row.request.index: row for row in settled}
    assert [tuple(rows[i].token_ids) for i in range(5)] == [c.token_ids for c in expected]
    assert [rows[i].finish_reason for i in range(5)] == [c.finish_reason for c in expected]
    assert engine.stats.new_tokens == sum(len(c.token_ids) for c in expected)
    assert engine.stats.dropped_tokens <= lag * len(prompts)
    assert "stop" in [c.finish_reason for c in expected]


def test_no_row_runs_past_its_count(llm: LLM) -> None:
    """Rows that end by count are known ahead: however late the host is, no step is launched for them in vain."""
    engine = engine_of(llm, 2, lag=3)
    requests = llm.requests(prompts_of([4, 1, 9]), [SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 5, 3)])
    list(engine.generate(requests))
    assert engine.stats.dropped_tokens == 0


def test_rows_that_end_together_move_nobody(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go from the end of the batch: one that is to go itself is never moved into a gap first."""
    engine = engine_of(llm, 3)
    moves: list[tuple[int, int]] = []
    monkeypatch.setattr(engine.memory, "move", lambda source, target: moves.append((source, target)))
    list(engine.generate(llm.requests(prompts_of([4, 1, 9]), GREEDY)))
    assert moves == []


def test_stop_token(llm: LLM) -> None:
    """The stop token is the last of token_ids and no part of the text."""
    prompt = prompts_of([5])[0]
    free = llm.generate(prompt, GREEDY)[0]
    stop = free.token_ids[4]
    at = free.token_ids.index(stop)
    ended = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[stop]))[0]
    assert ended.token_ids == free.token_ids[: at + 1]
    assert ended.finish_reason == "stop"
    assert ended.text == llm.tokenizer.decode(free.token_ids[:at])


def test_stop_string_over_a_token_boundary(llm: LLM) -> None:
    prompt = prompts_of([5])[0]
    free = llm.generate(prompt, GREEDY)[0]
    middle = len(free.text) // 2
    stop = free.text[middle - 1 : middle + 2]
    params = SamplingParams(temperature=0, max_tokens=12, stop=stop, ignore_eos=True)
    ended = llm.generate(prompt, params)[0]
    assert ended.finish_reason == "stop"
    assert ended.text == free.text[: free.text.index(stop)]
    assert "".join(piece.text for piece in llm.stream(prompt, params)) == ended.text


def test_end_of_text_stops_unless_ignored(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompts_of([5])[0]
    free = llm.generate(prompt, GREEDY)[0]
    monkeypatch.setattr(llm, "_maker", replace(llm._maker, end_of_text=[free.token_ids[2]]))
    ended = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=12))[0]
    assert len(ended.token_ids) <= 3
    assert ended.finish_reason == "stop"
    assert llm.generate(prompt, GREEDY)[0].token_ids == free.token_ids


def test_context_ends_a_row(llm: LLM) -> None:
    done = llm.generate(prompts_of([95, 99]), SamplingParams(max_tokens=50, ignore_eos=True))
    assert [len(c.token_ids) for c in done] == [5, 1]
    assert [c.finish_reason for c in done] == ["length", "length"]


def test_max_len_is_a_smaller_context(make: Callable[..., LLM]) -> None:
    llm = make(max_len=20)
    assert len(llm.generate(prompts_of([15]), SamplingParams(max_tokens=50, ignore_eos=True))[0].token_ids) == 5
    with pytest.raises(ValueError, match="20"):
        llm.generate(prompts_of([20]))


def test_stream_is_generate(llm: LLM) -> None:
    prompts = prompts_of([4, 1, 9, 2, 30])
    expected = llm.generate(prompts, MIXED)
    texts, last = [""] * 5, {}
    for piece in llm.stream(prompts, MIXED):
        texts[piece.index] += piece.text
        last[piece.index] = piece
    assert texts == [c.text for c in expected]
    assert [last[i].finish_reason for i in range(5)] == [c.finish_reason for c in expected]
    assert [last[i].completion.token_ids for i in range(5)] == [c.token_ids for c in expected]


def test_streams_pieces_as_they_come(llm: LLM) -> None:
    """The first piece is there after one step, not after the last."""
    stream = llm.stream(prompts_of([4]), GREEDY)
    next(stream)
    assert llm.stats.decode_steps == 0
    next(stream)
    assert llm.stats.decode_steps == 1


def test_a_second_generation_is_refused_by_name(llm: LLM) -> None:
    stream = llm.stream(prompts_of([4]), GREEDY)
    next(stream)
    with pytest.raises(RuntimeError, match="generating already"):
        llm.generate(prompts_of([3]))
    assert len(list(stream)) == 11  # the first goes on unharmed
    assert llm.generate(prompts_of([3]), GREEDY)


def test_closed_stream_leaves_the_llm_usable(llm: LLM) -> None:
    expected = llm.generate(prompts_of([4]), GREEDY)
    stream = llm.stream(prompts_of([4, 7]), GREEDY)
    next(stream)
    stream.close()
    assert [c.token_ids for c in llm.generate(prompts_of([4]), GREEDY)] == [c.token_ids for c in expected]


def test_the_device_is_current_in_each_step_and_not_between(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes by the current device: events, pinned memory, Triton. Tried with a second GPU in tests/gpu."""
    current, seen = [], set()

    @contextmanager
    def device_of(tensor: torch.Tensor) -> Iterator[None]:
        current.append(tensor.device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    owners = (GPT2, "forward"), (BatchState, "admit"), (BatchState, "move"), (BatchState, "free"), (Fetch, "__init__")
    for owner, name in owners:
        original = getattr(owner, name)

        def watched(*args: Any, original: Any = original, name: str = name) -> Any:
            assert current
            seen.add(name)
            return original(*args)

        monkeypatch.setattr(owner, name, watched)
    for _ in llm.stream(prompts_of([4, 7, 2, 9, 5]), MIXED):
        assert not current
    assert seen == {"forward", "admit", "move", "free", "__init__"}
    next(llm.stream(prompts_of([4, 7]), GREEDY))  # and closed
    assert not current


@pytest.mark.parametrize("lag", [0, 2])
def test_abandoned_engine_is_as_new(llm: LLM, lag: int) -> None:
    """One engine, kept: stopped in the middle, then used again for another batch."""
    engine = engine_of(llm, 3, lag)
    first: Iterator[list[Row]] = engine.generate(llm.requests(prompts_of([4, 8, 2]), GREEDY))
    next(first)
    next(first)
    first.close()
    requests = llm.requests(prompts_of([9, 1]), GREEDY)
    rows = {row.request.index: row for settled in engine.generate(requests) for row in settled}
    expected = llm.generate(prompts_of([9, 1]), GREEDY)
    assert [tuple(rows[i].token_ids) for i in range(2)] == [c.token_ids for c in expected]


class Boom(Exception):
    pass


def test_an_error_in_a_step_leaves_the_llm_usable(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = llm.generate(prompts_of([4, 6]), GREEDY)
    with monkeypatch.context() as patch:
        calls = iter(range(100))

        def failing(self: GPT2, *args: object) -> torch.Tensor:
            if next(calls) == 2:
                raise Boom
            return original(self, *args)

        original = GPT2.forward
        patch.setattr(GPT2, "forward", failing)
        with pytest.raises(Boom):
            llm.generate(prompts_of([4, 6]), GREEDY)
    assert [c.token_ids for c in llm.generate(prompts_of([4, 6]), GREEDY)] == [c.token_ids for c in expected]


def test_stats_recount_from_the_results(llm: LLM) -> None:
    done = llm.generate(prompts_of([4, 1, 9, 2, 30]), MIXED)
    assert llm.stats.new_tokens == sum(len(c.token_ids) for c in done)
    assert llm.stats.prompt_tokens == 46
    assert llm.stats.requests == 5


def test_prompts_of_a_step_are_packed(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a nested list would be, row by row; and no tensor is made of a list of tokens, which took the host 106 ms."""
    lengths, slots = [99, 1, 40, 98] * 64, list(range(256))
    requests = LLM(small_model, engine="naive").requests(prompts_of(lengths), GREEDY)
    engine = engine_of(LLM(small_model, engine="naive"), 1)
    rows = [Row(request, slot=slot, asked=0.0) for request, slot in zip(requests, slots, strict=True)]
    for start, chunk in ((0, 99), (0, 64), (40, 40), (80, 99)):
        part = [row.request.prompt_token_ids[start : start + chunk] for row in rows if row.length > start]
        width = max(map(len, part))
        nested = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in part])
        with monkeypatch.context() as patched:
            patched.setattr(torch, "tensor", lambda *_, **__: pytest.fail("a tensor of a list"))
            step = engine._prompt_step(rows, start, chunk)
        assert torch.equal(step.token_ids, nested)
        assert step.last.tolist() == [len(ids) - 1 for ids in part]
        assert isinstance(step.rows, torch.Tensor)
        assert step.rows.tolist() == [row.slot for row in rows if row.length > start]
        assert step.positions[-1].tolist() == list(range(start, start + width))


def test_metrics(llm: LLM) -> None:
    one = llm.generate(prompts_of([4]), GREEDY)[0].metrics
    assert len(one.itl_s) == 11
    assert 0 < one.ttft_s < one.total_s
    assert one.decode_tokens_per_s == pytest.approx(11 / sum(one.itl_s))
    single = llm.generate(prompts_of([4]), SamplingParams(max_tokens=1))[0].metrics
    assert single.itl_s == ()
    assert single.decode_tokens_per_s == 0.0


def test_seeds_are_drawn_in_order_and_recorded(make: Callable[..., LLM]) -> None:
    """Two LLMs of one seed agree call by call; a recorded seed repeats its row; another LLM seed gives another text."""
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    first, again, other = (make(seed=s) for s in (3, 3, 4))
    a = first.generate(prompts_of([4, 4]), params) + first.generate(prompts_of([4]), params)
    b = again.generate(prompts_of([4, 4]), params) + again.generate(prompts_of([4]), params)
    assert [c.seed for c in a] == [c.seed for c in b]
    assert len({c.seed for c in a}) == 3
    assert [c.token_ids for c in a] == [c.token_ids for c in b]
    assert other.generate(prompts_of([4]), params)[0].token_ids != a[0].token_ids
    repeated = other.generate(prompts_of([4]), SamplingParams(max_tokens=20, seed=a[2].seed, ignore_eos=True))[0]
    assert repeated.token_ids == a[2].token_ids


def test_a_refused_call_draws_no_seed(make: Callable[..., LLM]) -> None:
    first, second = make(seed=3), make(seed=3)
    with pytest.raises(ValueError):
        first.generate([prompts_of([4])[0], []])
    assert first.generate(prompts_of([4]))[0].seed == second.generate(prompts_of([4]))[0].seed


@pytest.fixture(scope="module")
def gpu_model() -> GPT2:
    return random_model(SMALL, seed=1, std=STD, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("sampled", [False, True])
def test_the_loop_waits_nowhere_but_in_collect(gpu_model: GPT2, engine_name: str, sampled: bool, lag: int) -> None:
    """Promise 7, held by torch itself: any hidden synchronization raises. Waiting for an event is none of these."""
    params = MIXED if sampled else GREEDY
    llm = LLM(gpu_model, engine=engine_name)
    requests = llm.requests(prompts_of([4, 1, 9, 2, 30]), params)
    engine = engine_of(llm, 2, lag)
    list(engine.generate(requests))
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        list(engine.generate(requests))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("lag", [0, 2])
def test_gpu_tokens_are_the_oracle_s(small_model: GPT2, gpu_model: GPT2, engine_name: str, lag: int) -> None:
    """The GPU's tokens held against the CPU's logits, float32."""
    llm = LLM(gpu_model, engine=engine_name, max_batch=3)
    prompts = prompts_of([4, 1, 9, 2, 30])
    done = llm.generate(prompts, MIXED)
    print(verify_tokens(LLM(small_model).forward_logits, done, MIXED))
    requests = llm.requests(prompts, MIXED)
    rows = {row.request.index: row for settled in engine_of(llm, 3, lag).generate(requests) for row in settled}
    assert [tuple(rows[i].token_ids) for i in range(5)] == [c.token_ids for c in done]
