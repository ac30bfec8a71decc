"""The loop: results in order, streams, readers, seeds and times; and an engine that survives everything.

Histories of submissions, cancellations and failures at random are in test_scheduler.py; tokens in test_rungs.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Semaphore
from types import SimpleNamespace
from typing import Any

import pytest

import nanoinfer.async_llm
import nanoinfer.engine.queue
import nanoinfer.llm
from nanoinfer import LLM, AsyncLLM, SamplingParams
from nanoinfer.cache.sharing import SharedBlocks
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import prompts_of
from tests.engine.fake_graphed import Gate, idle, nothing_is_held, watch

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
MIXED = [
    SamplingParams(temperature=0, max_tokens=9),
    SamplingParams(temperature=0.8, max_tokens=17, seed=5),
    SamplingParams(temperature=1.0, top_k=20, top_p=0.9, max_tokens=3, seed=6),
    SamplingParams(temperature=1.2, top_p=0.7, max_tokens=14, seed=2**40),
    SamplingParams(temperature=0, max_tokens=1),
]


@pytest.fixture
def make(small_model: GPT2) -> Callable[..., LLM]:
    """An LLM over the small model, by its settings. The loop is one, whatever the engine."""
    return lambda **settings: LLM(small_model, **{"engine": "paged", "threads": 1, **settings})


@pytest.fixture
def llm(make: Callable[..., LLM]) -> LLM:
    return make(max_batch=3)


def submissions(llm: LLM, patch: pytest.MonkeyPatch) -> Semaphore:
    """Released once for each request that has been submitted."""
    submitted, submit = Semaphore(0), llm.core.submit
    patch.setattr(llm.core, "submit", lambda *given, **named: [submit(*given, **named), submitted.release()][0])
    return submitted


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    """More prompts than rows, each by its own settings; samples beside their prompt; streamed as well, by the token."""
    prompts = prompts_of([4, 1, 9, 2, 30])
    params = [*MIXED[:4], replace(MIXED[1], n=2, stop_token_ids=range(0, 211, 9))]
    done = llm.generate(prompts, params)
    assert [(c.index, c.sample) for c in done] == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (4, 1)]
    assert [c.prompt_token_ids for c in done[:5]] == [tuple(prompt) for prompt in prompts]
    assert [len(c.token_ids) for c in done[:4]] == [p.max_tokens for p in params[:4]]
    print(verify_tokens(llm.forward_logits, done, [*params, params[4]]))
    pieces = list(llm.stream(prompts, params))
    for completion in done:
        mine = [piece for piece in pieces if (piece.index, piece.sample) == (completion.index, completion.sample)]
        assert [piece.token_ids for piece in mine] == [(token,) for token in completion.token_ids]
        assert [piece.finish_reason for piece in mine] == [None] * (len(mine) - 1) + [completion.finish_reason]
    assert not llm.loop._mailboxes


def test_end_of_text_stops_unless_ignored(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id that stops is the last of token_ids and no part of the text."""
    prompt = prompts_of([5])[0]
    free = llm.generate(prompt, GREEDY)[0]
    monkeypatch.setattr(llm, "_maker", replace(llm._maker, end_of_text=[free.token_ids[2]]))
    (ended,) = llm.generate(prompt, replace(GREEDY, ignore_eos=False))
    at = free.token_ids.index(free.token_ids[2])
    assert (ended.token_ids, ended.finish_reason) == (free.token_ids[: at + 1], "stop")
    assert ended.text == llm.tokenizer.decode(free.token_ids[:at])
    assert llm.generate(prompt, GREEDY)[0].token_ids == free.token_ids


def test_streams_pieces_as_they_come(llm: LLM) -> None:
    """Each piece is there after its step: the next one does not begin before the piece has been read."""
    gate, ends = Gate(llm), []
    gate.open(1)
    for piece in llm.stream(prompts_of([4]), GREEDY):
        ends.append(piece.completion is not None)
        assert llm.stats.decode_steps == len(ends) - 1
        gate.open(1)
    assert ends == [False] * 11 + [True]


def test_generations_from_several_threads(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for rows as prompts of one call do, and each gets its own."""
    prompts = [prompts_of([length, 5], seed=length) for length in (4, 1, 9, 2)]
    alone = [[c.token_ids for c in llm.generate(pair, GREEDY)] for pair in prompts]
    gate, submitted = Gate(llm), submissions(llm, monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(llm.generate, pair, GREEDY) for pair in prompts]
        assert all(submitted.acquire(timeout=60) for _ in range(8))
        gate.open()
        done = [future.result() for future in futures]
    assert [[c.token_ids for c in pair] for pair in done] == alone
    assert [[c.index for c in pair] for pair in done] == [[0, 1]] * 4


def test_a_closed_stream_ends_its_generation(llm: LLM) -> None:
    """With the next step: no token is computed for nobody, and the LLM is as before."""
    gate = Gate(llm)
    gate.open(1)
    stream = llm.stream(prompts_of([4, 7]), GREEDY)
    next(stream)
    stream.close()
    gate.open()
    nothing_is_held(llm)
    assert llm.stats.new_tokens == 2
    verify_tokens(llm.forward_logits, llm.generate(prompts_of([4]), GREEDY), GREEDY)


class Boom(Exception):
    pass


def test_a_failure_is_heard_of_by_all_who_wait(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in the batch, those that wait for a row, and though what follows a failure fails as well."""
    expected = llm.generate(prompts_of([4, 6]), GREEDY)

    def failing(*given: object) -> None:
        raise Boom

    with monkeypatch.context() as patch, ThreadPoolExecutor(3) as pool:
        submitted, gate = submissions(llm, patch), Gate(llm)
        patch.setattr(GPT2, "forward", failing)
        patch.setattr(SharedBlocks, "forget", failing)
        futures = [pool.submit(llm.generate, prompts_of([4, 6]), GREEDY) for _ in range(3)]
        assert all(submitted.acquire(timeout=60) for _ in range(6))
        gate.open()
        assert [type(future.exception(timeout=60)) for future in futures] == [Boom] * 3
    assert [c.token_ids for c in llm.generate(prompts_of([4, 6]), GREEDY)] == [c.token_ids for c in expected]


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


# What users have met


@pytest.mark.parametrize("engine", ["naive", "dense", "paged"])
def test_a_ragged_prefill_computes_the_tokens_that_exist(engine: str) -> None:
    """31 prompts of 10 tokens and one of 900 were 28,800."""
    shape = ModelConfig(n_layer=1, n_head=2, n_embd=16, n_positions=1024, vocab_size=211)
    computed, llm = list[int](), LLM(random_model(shape, seed=1), engine=engine)
    watch(llm.model, "hidden", lambda batch, attend: computed.append(len(batch.token_ids)))
    llm.generate([[7] * 10] * 31 + [[8] * 900], SamplingParams(max_tokens=1))
    assert sum(computed) == 1210


def test_times_are_the_engine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a step moves by 1, tokenizing by 100, and a reader who takes their time by 1,000.

    The time to the first token begins with the call; what the reader does is in no token's time.
    """
    now = [0.0]
    for module in (nanoinfer.llm, nanoinfer.async_llm, nanoinfer.engine.queue):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def taking(seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            now[0] += seconds
            return call(*args, **kwargs)

        return timed

    monkeypatch.setattr(GPT2, "forward", taking(1, GPT2.forward))
    behind_asyncio = AsyncLLM("random:tiny", engine="dense", device="cpu", threads=1)
    llm = behind_asyncio.llm
    monkeypatch.setattr(type(llm.tokenizer), "encode", taking(100, type(llm.tokenizer).encode))
    (done,) = llm.generate("One day", GREEDY)
    assert (done.metrics.ttft_s, done.metrics.itl_s, done.metrics.total_s) == (101, (1,) * 11, 112)
    assert done.metrics.decode_tokens_per_s == 1
    assert llm.generate("One day", replace(GREEDY, max_tokens=1))[0].metrics.decode_tokens_per_s == 0
    assert asyncio.run(behind_asyncio.generate("One day", GREEDY))[0].metrics == done.metrics
    stream = llm.stream("One day", GREEDY)
    next(stream)
    idle(llm)  # the engine is done, though one piece has been read
    now[0] += 1000
    last = list(stream)[-1]
    assert last.completion
    assert last.completion.metrics == done.metrics
