"""Speculation: the tokens of plain decoding, whatever is drafted; and rows, blocks and counts as if one by one."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanoinfer import LLM, AsyncLLM, SamplingParams
from nanoinfer.cache.blocks import BlockManager
from nanoinfer.cache.paged import PagedCache
from nanoinfer.engine import graphs as graphs_base
from nanoinfer.engine.engine import Engine, InFlight
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.scheduler import Row, Scheduler
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.requests import Completion, Request
from nanoinfer.speculate import engine as engine_module
from nanoinfer.speculate import graphs as graphs_module
from nanoinfer.speculate import step as step_module
from nanoinfer.speculate.adaptive import EVERY, FORGOTTEN, SELDOM, SOONEST, Acceptance, Adaptive, Trial
from nanoinfer.speculate.coin import CoinDrafter
from nanoinfer.speculate.draft_model import Drafted
from nanoinfer.speculate.engine import SpeculativeEngine, Verifying
from nanoinfer.speculate.graphs import VerifyKey
from nanoinfer.speculate.lookup import PromptLookup, look_up
from nanoinfer.speculate.scheduler import DraftScheduler
from nanoinfer.verify import verify_tokens
from tests.conftest import STD, prompts_of
from tests.engine.fake_graphed import Rerun, graph_llm, runner_of, watch

FREE = {"ignore_eos": True}
MIXED = [
    SamplingParams(temperature=0, seed=1, max_tokens=30, **FREE),
    SamplingParams(max_tokens=40, seed=3, **FREE),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=5, max_tokens=200, **FREE),  # up to the context's end
    SamplingParams(temperature=0, seed=1, max_tokens=1, **FREE),
    SamplingParams(temperature=1.3, top_p=0.8, seed=2**40, max_tokens=90, **FREE),
]
SCORED = [
    SamplingParams(temperature=0, seed=1, max_tokens=40, frequency_penalty=2.0, logprobs=3, **FREE),
    SamplingParams(temperature=0, seed=1, max_tokens=40, frequency_penalty=-2.0, logprobs=0, **FREE),
    SamplingParams(temperature=0.9, seed=4, max_tokens=30, presence_penalty=1.5, frequency_penalty=0.3, **FREE),
    SamplingParams(temperature=0, seed=1, max_tokens=20, **FREE),
    SamplingParams(temperature=0.9, seed=9, max_tokens=30, top_k=30, logprobs=2, prompt_logprobs=1, **FREE),
]
LENGTHS = [4, 9, 30, 2, 60]


class Scripted:
    """Drafts of any length, each token right with probability `right`; too long ones too.

    texts: by (prompt, seed), what the row will choose.
    """

    def __init__(self, texts: dict[Any, Sequence[int]], random: Random, right: float = 0.8, vocab: int = 211) -> None:
        self.texts, self.random, self.right, self.vocab = texts, random, right, vocab

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        return [self.one(row, limit + self.random.choice([0, 0, 3])) for row, limit in zip(rows, limits, strict=True)]

    def one(self, row: Row, most: int) -> list[int]:
        text = self.texts[name_of(row.request)][len(row.token_ids) :]
        count = self.random.randint(0, most)
        guesses = [*text[:count], *[0] * (count - len(text))]
        return [each if self.random.random() < self.right else self.random.randrange(self.vocab) for each in guesses]


class Right(Scripted):
    """As long as may be, and never wrong."""

    def one(self, row: Row, most: int) -> list[int]:
        return list(self.texts[name_of(row.request)][len(row.token_ids) :][:most])


def name_of(each: Request | Completion) -> tuple[Any, ...]:
    return each.prompt_token_ids, each.seed


def texts_of(done: Sequence[Completion]) -> dict[Any, Sequence[int]]:
    return {name_of(completion): completion.token_ids for completion in done}


def speculating(model: GPT2, drafter: Any, draft_tokens: int = 6, **config: Any) -> LLM:
    llm = LLM(model, speculate="lookup", draft_tokens=draft_tokens, adaptive_drafts=False, **config)
    core: Any = llm.core
    core.begin_with(drafter)
    return llm


def seen(done: Sequence[Completion]) -> list[Any]:
    return [(c.token_ids, c.text, c.finish_reason) for c in done]


@pytest.fixture(scope="module")
def plain(small_model: GPT2) -> LLM:
    return LLM(small_model, engine="naive")


@pytest.fixture(params=["naive", "dense", "paged"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestTokensEqual:
    @pytest.mark.parametrize("params", [MIXED, SCORED], ids=["samplers", "penalties and logprobs"])
    @pytest.mark.parametrize("right", [1.0, 0.8, 0.0])
    def test_ragged_and_refilled(
        self, small_model: GPT2, plain: LLM, engine: str, params: list[SamplingParams], right: float
    ) -> None:
        """More rows than fit, drafts of all lengths, right and wrong, up to the context's end."""
        prompts = prompts_of(LENGTHS)
        expected = plain.generate(prompts, params)
        llm = speculating(small_model, Scripted(texts_of(expected), Random(1), right), engine=engine, max_batch=2)
        done = llm.generate(prompts, params)
        assert seen(done) == seen(expected)
        print(verify_tokens(llm.forward_logits, done, params))
        stats = llm.stats
        assert stats.verify_steps > 10
        assert (stats.accepted_tokens > stats.draft_tokens * 0.3) == (right > 0)
        assert stats.accepted_tokens <= stats.draft_tokens
        assert stats.new_tokens == sum(len(c.token_ids) for c in done)
        assert stats.dropped_tokens == 0

    @pytest.mark.parametrize("k", range(1, 9))
    def test_all_drafts_right(self, small_model: GPT2, plain: LLM, engine: str, k: int) -> None:
        """Every step gives k + 1 tokens, but the last one of a row, to the last position."""
        prompts = prompts_of([96 - k, 40])
        params = SamplingParams(temperature=0, seed=1, max_tokens=31, **FREE)
        expected = plain.generate(prompts, params)
        llm = speculating(small_model, Right(texts_of(expected), Random(1)), k, engine=engine, max_batch=1)
        assert seen(llm.generate(prompts, params)) == seen(expected)
        counts = [len(c.token_ids) for c in expected]
        assert counts == [k + 4, 31]
        assert llm.stats.decode_steps == sum(-(-(count - 1) // (k + 1)) for count in counts)
        assert llm.stats.accepted_tokens == llm.stats.draft_tokens

    @pytest.mark.parametrize("mixed", [False, True])
    @pytest.mark.parametrize("preemption", [False, True])
    def test_beside_chunks_sharing_and_preemption(
        self, small_model: GPT2, plain: LLM, mixed: bool, preemption: bool
    ) -> None:
        begin = prompts_of([40])[0]
        prompts = [begin[: 33 + n] + each for n, each in enumerate(prompts_of([1, 9, 20, 2, 5, 11]))]
        params = [MIXED[0], MIXED[1], SCORED[0], MIXED[2], SCORED[2], MIXED[4]]
        expected = plain.generate(prompts, params)
        llm = speculating(
            small_model, Scripted(texts_of(expected), Random(3), 0.9), engine="paged", max_batch=4, prefill_chunk=7,
            prefix_caching=True, preemption=preemption, kv_blocks=14, max_batched_tokens=24,
        )  # fmt: skip
        llm.core.scheduler.mixed = mixed
        assert seen(llm.generate(prompts, params)) == seen(expected)
        stats = llm.stats
        assert stats.cached_tokens > 0
        assert (stats.preemptions > 0) == preemption
        assert stats.accepted_tokens > 30
        if mixed:
            assert stats.verify_steps + stats.prefill_steps > stats.prefill_steps + stats.decode_steps  # some were both

    def test_prompts_that_are_scored_run_beside_plain_rows(self, small_model: GPT2, plain: LLM) -> None:
        params = [SCORED[4], MIXED[4], SCORED[4]]
        prompts = prompts_of([30, 3, 20])
        expected = plain.generate(prompts, params)
        llm = speculating(small_model, Right(texts_of(expected), Random(1)), engine="paged", max_batch=2)
        llm.core.scheduler.mixed = True
        done = llm.generate(prompts, params)
        assert seen(done) == seen(expected)
        verify_tokens(llm.forward_logits, done, params)

    @pytest.mark.parametrize("mixed", [False, True])
    def test_the_budget_is_kept(
        self, small_model: GPT2, plain: LLM, monkeypatch: pytest.MonkeyPatch, mixed: bool
    ) -> None:
        prompts = prompts_of([3, 5, 8, 2, 31, 25])
        params = SamplingParams(temperature=0, seed=1, max_tokens=20, **FREE)
        expected = plain.generate(prompts, params)
        sizes: list[int] = []
        original = step_module.pack_runs

        def packed(*args: Any) -> Any:
            made = original(*args)
            sizes.append(len(made[0].token_ids))
            return made

        monkeypatch.setattr("nanoinfer.speculate.engine.pack_runs", packed)
        drafter = Right(texts_of(expected), Random(1))
        llm = speculating(small_model, drafter, 8, engine="paged", max_batch=4, max_batched_tokens=11)
        llm.core.scheduler.mixed = mixed
        assert seen(llm.generate(prompts, params)) == seen(expected)
        assert max(sizes) <= 11
        assert 8 in sizes  # (11 - 4) // 4 drafts a row, beside its newest token
        assert llm.stats.draft_tokens > 20

    @pytest.mark.parametrize("text", [False, True])
    def test_streams_bring_token_by_token(self, small_model: GPT2, plain: LLM, text: bool) -> None:
        params = SamplingParams(temperature=0, seed=1, max_tokens=17, stop=["~nowhere~"] if text else (), **FREE)
        prompts = prompts_of([3, 8])
        expected = plain.generate(prompts, params)
        llm = speculating(small_model, Right(texts_of(expected), Random(1)), engine="dense")
        pieces = list(llm.stream(prompts, params))
        for completion in expected:
            own = [piece for piece in pieces if piece.index == completion.index]
            assert tuple(piece.token_id for piece in own) == completion.token_ids
            assert "".join(piece.text for piece in own) == completion.text
            assert own[-1].completion is not None
            assert own[-1].completion.token_ids == completion.token_ids

    @pytest.mark.parametrize("lookup", [True, False])
    def test_behind_asyncio(self, small_model: GPT2, plain: LLM, lookup: bool) -> None:
        """Requests that come and go, over shared pages with preemption; streams bring the same tokens."""
        prompts, params = (
            [*prompts_of([3, 20, 8, 40]), [7, 8, 9] * 8],
            [MIXED[0], SCORED[0], MIXED[1], SCORED[2], MIXED[0]],
        )
        expected = plain.generate(prompts, params)

        async def run() -> tuple[list[Completion], list[tuple[int, ...]]]:
            async with AsyncLLM(
                small_model, engine="paged", max_batch=3, kv_blocks=12, speculate="lookup" if lookup else small_model,
                adaptive_drafts=False,
            ) as llm:  # fmt: skip
                stream = llm.stream(prompts, params)
                whole = asyncio.create_task(llm.generate(prompts, params))
                ids: list[list[int]] = [[] for _ in prompts]
                async for piece in stream:
                    ids[piece.index] += piece.token_ids
                    assert piece.logprobs is None or len(piece.logprobs) == len(piece.token_ids)
                assert llm.stats.verify_steps > 0
                return await whole, list(map(tuple, ids))

        done, streamed = asyncio.run(run())
        assert seen(done) == seen(expected)
        assert streamed == [c.token_ids for c in expected]


class TestEnds:
    """Stops, limits and the context's end, in the middle of a run of accepted tokens."""

    @pytest.mark.parametrize("k", [1, 4, 7])
    def test_every_place_of_a_stop_and_every_limit(self, small_model: GPT2, plain: LLM, k: int) -> None:
        prompt = prompts_of([5])[0]
        sampled = SamplingParams(seed=11, max_tokens=12, **FREE)
        text = plain.generate(prompt, sampled)[0].token_ids
        assert len(set(text)) >= 10
        llm = speculating(small_model, Right({(tuple(prompt), 11): [*text, *[0] * 9]}, Random(1)), k, engine="paged")
        for stop in range(1, 12):
            for limit in range(stop, min(12, stop + k + 2)):
                params = SamplingParams(seed=11, max_tokens=limit, stop_token_ids=(text[stop],), **FREE)
                expected = plain.generate(prompt, params)
                assert seen(llm.generate(prompt, params)) == seen(expected)
                assert llm.core.gauges.blocks_used == 0
        assert llm.stats.dropped_tokens > 0

    @pytest.mark.parametrize("begin", range(0, 12, 2))
    @pytest.mark.parametrize("length", [1, 4])
    def test_stop_strings(self, small_model: GPT2, plain: LLM, begin: int, length: int) -> None:
        """At the front of a run, across a border of tokens, at its end: no id and no logprob is left behind it."""
        prompt, params = prompts_of([5], seed=1)[0], {"seed": 8, "max_tokens": 20, "logprobs": 0, **FREE}
        text = plain.generate(prompt, SamplingParams(**params))[0]
        stop = text.text[begin : begin + length]
        expected = plain.generate(prompt, SamplingParams(stop=[stop], **params))
        llm = speculating(small_model, Right(texts_of([text]), Random(1)), 8, engine="dense")
        done = llm.generate(prompt, SamplingParams(stop=[stop], **params))
        assert seen(done) == seen(expected)
        assert done[0].logprobs is not None
        assert len(done[0].logprobs) == len(done[0].token_ids) < 20

    def test_cancelled_between_steps(self, small_model: GPT2, plain: LLM) -> None:
        prompts, params = prompts_of([5, 7]), SamplingParams(temperature=0, seed=1, max_tokens=40, **FREE)
        expected = plain.generate(prompts, params)
        llm = speculating(small_model, Scripted(texts_of(expected), Random(2)), engine="paged")
        rows = [llm.core.submit(request) for request in llm.requests(prompts, params)]
        for _ in range(3):
            llm.core.step()
        llm.core.cancel(rows[0])
        while llm.core.busy:
            llm.core.step()
            check_books(llm.core)
        assert tuple(rows[0].token_ids) == expected[0].token_ids[: len(rows[0].token_ids)]
        assert tuple(rows[1].token_ids) == expected[1].token_ids
        assert llm.core.gauges.blocks_used == 0

    def test_a_drafter_that_fails_ends_its_requests_only(self, small_model: GPT2, plain: LLM) -> None:
        llm = LLM(small_model, engine="paged", speculate="lookup")
        prompt, params = prompts_of([30])[0], SamplingParams(temperature=0, seed=1, max_tokens=20, **FREE)
        core: Any = llm.core
        kept = core.drafter
        core.begin_with(None)
        with pytest.raises(AttributeError):
            llm.generate(prompt, params)
        core.begin_with(kept)
        assert seen(llm.generate(prompt, params)) == seen(plain.generate(prompt, params))


def check_books(engine: Engine) -> None:
    """What the host and the device know of rows that go on, as after steps of one token each."""
    state, blocks = engine.state, engine.cache.blocks
    for row in engine.rows:
        if not row.going:
            continue
        prompt = len(row.request.prompt_token_ids)
        assert row.fed == prompt + len(row.token_ids) - 1
        assert state.position[row.slot] == row.fed
        assert state.step[row.slot] == len(row.token_ids)
        assert state.token[row.slot] == row.token_ids[-1]
        assert len(row.times) == len(row.token_ids)
        if isinstance(blocks, BlockManager):
            owned = blocks.owned[row.slot]
            assert len(owned) in (blocks.blocks_of(row.fed), blocks.blocks_of(row.fed + 1))  # it may wait its turn
            assert row.room == len(owned) * blocks.block_size
            assert row.due == min(row.room, row.last)
            assert blocks.reservation[row.slot] == max(len(owned), first_reservation(engine.scheduler, blocks, row))
            assert (row in engine.scheduler._full) == (row.fed == row.room)
            assert all(blocks.allocator.owned[block] for block in owned)
    if isinstance(blocks, BlockManager):
        assert blocks.reserved == sum(map(int.__sub__, blocks.reservation, map(len, blocks.owned)))
        assert blocks.available >= 0
    scoring: Any = engine.samplers.scoring
    for row in engine.rows:
        if row.going and row.request.params.penalises:
            counted = torch.bincount(torch.tensor(row.token_ids), minlength=scoring.counts.shape[1])
            assert scoring.counts[row.slot].tolist() == counted.tolist()


def first_reservation(scheduler: Scheduler, blocks: BlockManager, row: Row) -> int:
    """Blocks that the row reserved when it was admitted."""
    longest = len(row.request.prompt_token_ids) + row.request.limit
    return blocks.blocks_of(min(longest, len(row.prompt) + AHEAD) if scheduler.preemption else longest)


AHEAD = 5
TINY = ModelConfig(n_layer=1, n_head=2, n_embd=16, n_positions=100, vocab_size=13)


class History:
    """Requests come, are cancelled, run in little room and in pieces, by drafts of all kinds, or by none."""

    scored = stops = True  # whether some rows have penalties and logprobs, or end early

    def __init__(self, random: Random, model: GPT2, speculate: bool = True) -> None:
        self.random = random
        paged = random.random() < 0.8
        preemption = paged and random.random() < 0.6
        pages: dict[str, Any] = {
            "prefix_caching": random.random() < 0.5, "preemption": preemption, "kv_blocks": random.randint(5, 12)
        }  # fmt: skip
        config: dict[str, Any] = {
            "engine": "paged" if paged else "dense", "max_batch": random.randint(1, 4), "max_len": 64,
            "max_batched_tokens": random.choice([4, 9, 30]), "prefill_chunk": random.choice([None, 3]),
        }  # fmt: skip
        self.oracle = LLM(model, engine="dense", max_batch=1, max_len=64)
        config |= pages if paged else {}
        self.texts: dict[Any, Sequence[int]] = {}
        if not speculate:
            self.llm = LLM(model, **config)
        elif random.random() < 0.3:
            self.llm = LLM(model, speculate=model, draft_tokens=random.randint(1, 9), adaptive_drafts=False, **config)
        else:
            drafter = Scripted(self.texts, random, random.choice([0.0, 0.8, 1.0]), 13)
            self.llm = speculating(model, drafter, random.randint(1, 9), **config)
        self.llm.core.scheduler.mixed = random.random() < 0.5
        self.rows: dict[Row, tuple[int, ...]] = {}

    def submit(self) -> None:
        random = self.random
        prompt = [random.randrange(2) for _ in range(random.randint(1, 40))]
        params = SamplingParams(
            temperature=random.choice([0, 0.7, 2.0]), top_k=random.choice([0, 5]), top_p=random.choice([1.0, 0.9]),
            seed=random.randrange(1000), max_tokens=random.randint(1, 30),
            frequency_penalty=random.choice([0, 0, 0.5]) if self.scored else 0,
            logprobs=random.choice([None, None, 1]) if self.scored else None,
            stop_token_ids=random.sample(range(13), random.choice([0, 0, 2]) if self.stops else 0),
        )  # fmt: skip
        done = self.oracle.generate(prompt, params)[0]
        self.texts[name_of(done)] = done.token_ids
        self.rows[self.llm.core.submit(*self.llm.requests(prompt, params))] = done.token_ids

    def run(self, rounds: int = 12) -> LLM:
        core = self.llm.core
        for _ in range(rounds):
            while self.random.random() < 0.4:
                self.submit()
            if self.rows and self.random.random() < 0.1:
                core.cancel(self.random.choice(list(self.rows)))
            self.step()
        for _ in range(80 * len(self.rows)):
            if core.busy:
                self.step()
        assert not core.busy
        for row, expected in self.rows.items():
            tokens = tuple(row.token_ids)
            assert tokens == (expected[: len(tokens)] if row.cancelled else expected)
            assert row.ended
            if row.request.params.logprobs is not None:
                assert [each[0] for each in row.logprobs] == list(tokens)
        assert core.gauges.blocks_used == 0
        return self.llm

    def step(self) -> None:
        """And then whatever no row owns, or has written yet, is poison."""
        core: Any = self.llm.core
        before = {row: len(row.token_ids) for row in self.rows}
        settled = core.step()
        assert len({*settled}) == len(settled)
        assert {row for row, count in before.items() if len(row.token_ids) > count} == {*settled}
        if not core._in_flight:
            check_books(core)
        for row in core.rows:
            if row.going and any(isinstance(step, Verifying) for step in core._in_flight):
                position = int(core.state.position[row.slot])
                assert row.fed <= position <= min(row.fed + row.ahead, row.room, row.last)
        cache, blocks = core.cache, core.cache.blocks
        if isinstance(cache, PagedCache) and isinstance(blocks, BlockManager):
            free = list(blocks.allocator._free)
            cache.k[:, free] = cache.v[:, free] = torch.nan
            for row in core.rows if row_ends(core) and not core._in_flight else ():
                block, begin = blocks.owned[row.slot][-1], row.fed % blocks.block_size
                if begin:
                    cache.k[:, block, :, begin:] = cache.v[:, block, :, begin:] = torch.nan


class Tossed(CoinDrafter):
    """As the coin, of texts by name, which come to be known later."""

    alpha: float
    known: dict[Any, Sequence[int]]

    def _text(self, row: Row, begin: int) -> Sequence[int]:
        new = {row.request.seed: self.known[name_of(row.request)]}
        known = self._known.copy()
        self.begin(new, self.alpha, row.request.seed)
        self._known = known
        return super()._text(row, begin)


class WithinHistory(History):
    """The same with drafts that are made within the steps, by an engine that is some steps behind."""

    def __init__(self, random: Random, model: GPT2) -> None:
        self.random, self.scored = random, random.random() < 0.2
        paged = random.random() < 0.8
        pages: dict[str, Any] = {
            "prefix_caching": random.random() < 0.5, "preemption": random.random() < 0.6,
            "kv_blocks": random.randint(5, 8),
        }  # fmt: skip
        k = random.randint(1, 9)
        self.oracle = LLM(model, engine="dense", max_batch=1, max_len=64)
        self.llm = graph_llm(
            model, "paged-graph" if paged else "dense-graph", recorder=Rerun(), lag=random.choice([0, 1, 2, 5]),
            max_batch=random.randint(1, 5), mixed=random.random() < 0.5, speculate="lookup", draft_tokens=k,
            adaptive_drafts=False, max_len=64, max_batched_tokens=random.choice([5, 30, 60]),
            prefill_chunk=random.choice([None, 3]), **(pages if paged else {}),
        )  # fmt: skip
        self.texts: dict[Any, Sequence[int]] = {}
        self.rows: dict[Row, tuple[int, ...]] = {}
        self.alpha = random.choice([None, None, 0.0, 0.6, 0.9, 1.0, 1.0])
        if self.alpha is not None:
            coin = Tossed(self.llm.max_batch, 64, k, model.device)
            coin.alpha, coin.known = self.alpha, self.texts
            self.stops = 0 < self.alpha < 1  # behind its end a text is not known
            core: Any = self.llm.core
            core.begin_with(coin)

    def run(self, rounds: int = 12) -> LLM:
        llm = super().run(rounds)
        assert self.alpha not in (0.0, 1.0) or llm.stats.accepted_tokens == self.alpha * llm.stats.draft_tokens
        return llm


def row_ends(core: Engine) -> bool:
    return all(row.going for row in core.rows)


@pytest.fixture(scope="module")
def tiny_model() -> GPT2:
    return random_model(TINY, seed=2, std=STD)


@pytest.fixture(autouse=True)
def little_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoinfer.engine.scheduler.AHEAD", AHEAD)


QUIET = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@QUIET
@given(st.integers(0, 2**32), st.booleans())
def test_histories(tiny_model: GPT2, seed: int, speculate: bool) -> None:
    """After every step rows and blocks are as after plain steps: the same checks hold of an engine without drafts."""
    History(Random(seed), tiny_model, speculate).run()


def edited(owner: Any, name: str, old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A mutant: the function of that name, with one line of it written in another way."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        function = getattr(owner, name)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(old) == 1, (name, old)
        made: dict[str, Any] = {}
        module = inspect.getmodule(function)
        exec(compile(source.replace(old, new), f"<mutant of {name}>", "exec"), vars(module) | {"super": super}, made)
        for place in (owner, engine_module):  # which has imported it by name
            if hasattr(place, name):
                patch.setattr(place, name, made[name])

    return mutate


@pytest.fixture
def no_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each capture collects garbage, which a CUDA graph needs and takes longer than all else here."""
    monkeypatch.setattr(graphs_base.gc, "collect", int)


def test_histories_of_drafts_within_steps(tiny_model: GPT2, no_collections: None) -> None:
    """What is known late is between its bounds, and where nothing is in flight all is as after plain steps."""
    behind = short = steps = 0
    for seed in range(60):
        llm = WithinHistory(Random(seed), tiny_model).run()
        steps += llm.stats.verify_steps
        behind += llm.stats.verify_steps * (llm.core.lag > 0)
        short += llm.stats.preemptions * (llm.stats.verify_steps > 0)
    print(steps, behind, short)
    assert min(steps, behind) > 300
    assert short > 10


WITHIN = {
    "texts stay when rows move": edited(PromptLookup, "move", "self.texts[target] =", "self.texts[target] ="
                                        " self.texts[target] if sources else"),
    "a row goes on behind its room": edited(SpeculativeEngine, "_replay", "min(row.room, row.last)", "row.last"),
    "a row goes on behind its end": edited(SpeculativeEngine, "_replay", "min(row.room, row.last)", "row.room"),
    "what was not fed is accepted": edited(step_module, "verify_rows", "& brought)", ")"),
    "a row at its end chooses": edited(step_module, "verify_rows", "(accepted + 1) * going", "accepted + 1"),
    "ends are of the next token": edited(step_module, "verify_rows", "places < work", "places - 1 < work"),
    "texts are learnt while steps are in flight": edited(
        SpeculativeEngine, "_launch", "self._texts and not self._in_flight", "self._texts"),
    "plain steps behind drafts": edited(SpeculativeEngine, "step", 'or (way == "device") ==', 'or () =='),
    "a row at its end gives tokens": edited(SpeculativeEngine, "_collect", "not row.ended and count", "count"),
    "what is ahead stays ahead": edited(SpeculativeEngine, "_collect", "row.ahead -= ahead", "pass"),
    "one of several is counted": edited(SpeculativeEngine, "_keep", "row.fed += fed", "row.fed += fed and not at"),
    "room is not given back": edited(DraftScheduler, "give_back", "blocks.truncate(row.slot, row.fed)", "pass"),
}  # fmt: skip


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_rows_that_all_want_the_last_block(tiny_model: GPT2, alpha: float) -> None:
    """None can go on, and the host hears of it late: then the youngest gives way, and its text is learnt anew."""
    params = [SamplingParams(temperature=0, seed=n, max_tokens=40, **FREE) for n in range(2)]
    prompts = [[1, 0] * 10, [0, 1, 1] * 7]
    expected = LLM(tiny_model, engine="naive").generate(prompts, params)
    llm = graph_llm(
        tiny_model, "paged-graph", recorder=Rerun(), lag=5, max_batch=2, speculate="lookup", draft_tokens=3,
        adaptive_drafts=False, max_len=64, kv_blocks=5, preemption=True, prefix_caching=False,
    )  # fmt: skip
    assert seen(tossing(llm, expected, alpha).generate(prompts, params)) == seen(expected)
    assert llm.stats.preemptions == 1
    assert alpha < 1 or llm.stats.accepted_tokens == llm.stats.draft_tokens > 20


def test_a_row_that_begins_again_is_learnt_in_its_new_place(small_model: GPT2) -> None:
    (request,) = LLM(small_model, engine="dense").requests([[3, 4, 3]], SamplingParams(seed=1))
    row, lookup = Row(request, 0.0), PromptLookup(2, 10, 3, small_model.device)
    for row.slot in (0, 1):
        lookup.forget([row])
        lookup.learn([row])
    assert lookup.texts[:, :3].tolist() == [[3, 4, 3]] * 2 + [[0] * 3]
    row.token_ids.append(9)
    lookup.learn([row])
    lookup.move([1], [0])
    assert lookup.texts[0, :5].tolist() == [3, 4, 3, 9, 0]


@pytest.mark.parametrize("name", WITHIN)
def test_histories_of_drafts_within_steps_tell(
    tiny_model: GPT2, monkeypatch: pytest.MonkeyPatch, no_collections: None, name: str
) -> None:
    WITHIN[name](monkeypatch)
    monkeypatch.setattr(graphs_module, "verify_rows", step_module.verify_rows)
    assert any(broken(tiny_model, seed, WithinHistory) for seed in range(60))


MUTANTS = {
    "the bonus token is forgotten": edited(step_module, "verify_step", "accepted + 1", "accepted.clamp(min=1)"),
    "the position of rejected tokens is kept": edited(
        step_module, "verify_step", "runs.positions + counts", "runs.positions + k + 1"),
    "a draft is kept behind a wrong one": edited(step_module, "verify_step", ".cumprod(1)", ".int()"),
    "noise by the step of the row": edited(
        step_module, "verify_step", "rows.step.add_(runs.offset)", "rows.step.add_(0)"),
    "noise goes on by one a step": edited(
        step_module, "verify_step", "state.step[runs.rows] + counts", "state.step[runs.rows] + 1"),
    "the right token is thrown away": edited(
        step_module, "verify_step", "accepted[:, None])", "(accepted[:, None] + 1).clamp(max=k))"),
    "drafts are held against the token before": edited(
        step_module, "verify_step", "chosen[:, :k] ==", "chosen[:, 1:] =="),
    "every token chosen is counted": edited(
        step_module, "verify_step", "(runs.offset < counts[runs.run]).int()", "torch.ones_like(runs.offset).int()"),
    "no token chosen is counted": edited(
        step_module, "verify_step", "(runs.offset < counts[runs.run]).int()", "torch.zeros_like(runs.offset).int()"),
    "penalties know no drafts": edited(step_module, "choose_scored", "ahead.int()", "ahead.int() * 0"),
    "drafts beyond the context": edited(
        DraftScheduler, "room_for", "row.last) - row.fed - 1", "row.last) - row.fed + 1"),
    "drafts beyond the pool": edited(DraftScheduler, "room_for", "wanted -= 1", "break"),
    "blocks of rejected drafts are kept": edited(
        DraftScheduler, "give_back", "blocks.truncate(row.slot, row.fed)", "pass"),
    "reservations for drafts are kept": edited(DraftScheduler, "give_back", "blocks.unreserve(", "sum(()) or max("),
    "a row without room goes on": edited(DraftScheduler, "give_back", "row.fed == row.room", "False"),
    "accepted tokens were not fed": edited(SpeculativeEngine, "_keep", "row.fed += fed", "row.fed += fed and not at"),
    "only the last of a run may end it": edited(
        SpeculativeEngine, "_keep", "token in row.stop_ids", "at == len(tokens) - 1 and token in row.stop_ids"),
    "a row goes on after its end": edited(SpeculativeEngine, "_keep", "if row.ended:", "if False:"),
    "logprobs of one place for all": edited(SpeculativeEngine, "_keep", "logprobs[at]", "logprobs[0]"),
    "logprobs of another row": edited(SpeculativeEngine, "_collect", "range(1 + drafts)", "range(count)"),
}  # fmt: skip


def broken(model: GPT2, seed: int, kind: type[History] = History) -> bool:
    try:
        kind(Random(seed), model).run()
    except (AssertionError, ValueError, LookupError, RuntimeError, StopIteration):
        return True
    return False


@pytest.mark.parametrize("name", MUTANTS)
def test_histories_tell(tiny_model: GPT2, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    MUTANTS[name](monkeypatch)
    assert any(broken(tiny_model, seed) for seed in range(100))


@pytest.mark.long
@pytest.mark.parametrize("engine", ["naive", "dense", "paged"])
def test_ten_thousand_tokens(small_model: GPT2, plain: LLM, engine: str) -> None:
    """Of mixed drafts, held against the oracle: right, wrong, too long, up to the context's end."""
    params = [*MIXED, *SCORED] * 40
    prompts = prompts_of([1 + 17 * n % 70 for n in range(len(params))])
    expected = LLM(small_model, engine="dense").generate(prompts, params)
    llm = speculating(small_model, Scripted(texts_of(expected), Random(5), 0.7), 8, engine=engine, max_batch=7)
    proof = verify_tokens(llm.forward_logits, llm.generate(prompts, params), params)
    print(proof, llm.stats)
    assert proof.tokens > 10_000
    assert 0.3 < llm.stats.accepted_tokens / llm.stats.draft_tokens < 0.9


class TestDraftModel:
    @pytest.mark.parametrize("k", [1, 2, 5, 8])
    @pytest.mark.parametrize("params", [MIXED, MIXED[:1] * 5], ids=["sampled", "greedy"])
    def test_the_model_itself_is_always_right(
        self, small_model: GPT2, plain: LLM, k: int, params: list[SamplingParams]
    ) -> None:
        """Positions, noise and the tokens behind a fully accepted run: where one is off, acceptance falls below 1."""
        prompts = prompts_of(LENGTHS)
        llm = LLM(
            small_model, engine="dense", max_batch=3, speculate=small_model, draft_tokens=k, adaptive_drafts=False
        )
        assert seen(llm.generate(prompts, params)) == seen(plain.generate(prompts, params))
        assert llm.stats.accepted_tokens == llm.stats.draft_tokens > 50

    @pytest.mark.parametrize("engine", ["dense", "paged"])
    @pytest.mark.parametrize("positions", [100, 50])
    def test_a_stranger_changes_no_token(self, small_model: GPT2, plain: LLM, engine: str, positions: int) -> None:
        """Nor does one whose context is shorter: it drafts up to its own end."""
        shape = ModelConfig(n_layer=1, n_head=2, n_embd=16, n_positions=positions, vocab_size=211)
        stranger = random_model(shape, seed=7, std=0.02)
        prompts, params = prompts_of(LENGTHS), [*MIXED[:3], *SCORED[2:4]]
        llm = LLM(
            small_model, engine=engine, max_batch=3, speculate=stranger, max_batched_tokens=20, adaptive_drafts=False
        )
        drafter: Any = llm.core.drafter  # type: ignore[attr-defined]
        shapes: list[tuple[int, int]] = []
        step = drafter._step
        drafter._step = lambda *args: (shapes.append((args[2].tokens, args[2].max_context)), step(*args))[1]
        assert seen(llm.generate(prompts, params)) == seen(plain.generate(prompts, params))
        assert llm.stats.draft_tokens > 0
        assert llm.stats.accepted_tokens < 0.3 * llm.stats.draft_tokens
        assert max(tokens for tokens, _ in shapes) == 20  # of the budget
        assert positions - 4 < max(context for _, context in shapes) <= positions

    @pytest.mark.parametrize("penalties", [False, True])
    def test_beside_preemption_and_penalties(self, small_model: GPT2, plain: LLM, penalties: bool) -> None:
        """What it does not foresee are penalties. Its cache of a row that comes back is as good as before."""
        others = [SCORED[0], SCORED[2]] if penalties else [MIXED[1], MIXED[4]]
        prompts = prompts_of([30, 20, 12, 25, 9, 31, 6])
        params = [MIXED[0], *others, MIXED[2], MIXED[4], MIXED[0], MIXED[1]]
        llm = LLM(
            small_model, engine="paged", max_batch=4, speculate=small_model, preemption=True, kv_blocks=10,
            max_batched_tokens=32, prefill_chunk=9,
        )  # fmt: skip
        assert seen(llm.generate(prompts, params)) == seen(plain.generate(prompts, params))
        assert llm.stats.preemptions > 0
        assert (llm.stats.accepted_tokens == llm.stats.draft_tokens) == (not penalties)

    def test_its_cache_holds_the_text_and_no_rejected_token(self, small_model: GPT2) -> None:
        shape = ModelConfig(n_layer=2, n_head=2, n_embd=16, n_positions=100, vocab_size=211)
        draft = random_model(shape, seed=7, std=STD)
        llm = LLM(small_model, engine="dense", max_batch=2, speculate=draft)
        drafter: Any = llm.core.drafter  # type: ignore[attr-defined]
        checked = 0
        params = SamplingParams(temperature=0, seed=1, max_tokens=30, **FREE)
        for _ in llm.core.generate(llm.requests(prompts_of([9, 20, 4]), params)):
            for row, known in drafter._rows.items():
                text = [*row.request.prompt_token_ids, *row.token_ids][: known.fed]
                if not row.ended and text:
                    fresh = LLM(draft, engine="dense", max_batch=1)
                    fresh.generate(text, SamplingParams(temperature=0, max_tokens=1))
                    cache: Any = fresh.core.cache
                    for own, other in ((drafter.cache.k, cache.k), (drafter.cache.v, cache.v)):
                        torch.testing.assert_close(own[:, known.slot, : known.fed], other[:, 0, : known.fed])
                    checked += 1
        assert checked > 30

    def test_how_far_a_cache_is_right(self) -> None:
        known = Drafted(0, 10, [5, 6, 7])
        known.truncate([5, 6, 7, 8, 9])  # all accepted: the last draft and the token behind it were not fed
        assert (known.fed, known.drafts) == (13, [])
        known.drafts = [5, 6, 7]
        known.truncate([5, 8])
        assert known.fed == 14
        known.drafts = [5, 6, 7]
        known.truncate([5, 6])  # drafts that were not verified: the newest token is fed again
        assert known.fed == 15

    def test_another_vocabulary_is_refused(self, small_model: GPT2, tiny_model: GPT2) -> None:
        with pytest.raises(ValueError, match="must have the model's vocabulary of 211 tokens, not 13"):
            LLM(small_model, speculate=tiny_model)


def found(text: Sequence[int], limit: int, longest: int = 3) -> list[int]:
    """What `look_up` finds behind a text, of several that lie in one tensor."""
    texts = torch.full((3, len(text) + 5), 7)
    texts[1, : len(text)] = torch.tensor(text, dtype=torch.int64)
    drafts = look_up(texts, torch.tensor([1]), torch.tensor([len(text) - 1]), limit, longest)
    assert drafts.shape == (1, limit)
    return drafts[0].tolist() if (drafts >= 0).any() else []  # type: ignore[no-any-return]


class TestLookup:
    def test_what_followed_last_time(self) -> None:
        assert found([1, 2, 3, 4, 9, 2, 3, 5, 2, 3], 2) == [5, 2]  # 2 3 stood last ahead of these; 5 2 3 never before
        assert found([1, 2, 3, 4, 9, 2, 3, 5, 2, 3, 4, 9], 4) == [2, 3, 5, 2]  # 3 4 9
        assert found([1, 2, 3], 4) == []
        assert found([7, 7, 7], 4) == [7] * 4  # what follows is known up to the end, and then goes round
        assert found([7, 1, 2, 3, 1, 2, 3, 1, 2], 5) == [3, 1, 2, 3, 1]
        assert found([5], 4) == []

    @given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 6))
    def test_as_a_search_finds_it(self, text: list[int], longest: int, limit: int) -> None:
        expected: list[int] = []
        for n in range(min(longest, len(text)), 0, -1):
            ends = [end for end in range(n, len(text)) if text[end - n : end] == text[-n:]]
            if ends:
                expected = (text[ends[-1] :] * limit)[:limit]
                break
        assert found(text, limit, longest) == expected

    @settings(suppress_health_check=[HealthCheck.differing_executors], deadline=None)
    @given(st.lists(st.integers(0, 2), min_size=2, max_size=30), st.integers(1, 6), st.data())
    def test_the_host_foresees_what_the_device_finds(
        self, plain: LLM, text: list[int], most: int, data: st.DataObject
    ) -> None:
        """Whether tokens come one by one or many at once; of a row that goes on, with more than `most` new ones."""
        prompt = data.draw(st.integers(1, len(text) - 1))
        (request,) = plain.requests([text[:prompt]], SamplingParams())
        lookup, row = PromptLookup(1, 40, most, torch.device("cpu")), Row(request, 0.0)
        for token in text[prompt:]:
            row.token_ids.append(token)
            if len(row.token_ids) > most and data.draw(st.booleans()):
                known = [*text[:prompt], *row.token_ids]
                guess = found(known[:-most], most)
                right = [a == b for a, b in zip(guess, known[-most:], strict=False)]
                assert lookup.foreseen(row, most) == [*right, False].index(False)

    def test_the_kernel_finds_the_same(self, tmp_path: Path) -> None:
        """In Triton's interpreter: texts of several tiles, and of one token; padding of the dummy row."""
        program = """
            import torch
            from nanoinfer.kernels import lookup
            from nanoinfer.speculate.lookup import LONGEST, NONE, look_up
            lookup.TILE = 16
            generator = torch.Generator().manual_seed(1)
            for symbols in (2, 5, 50):
                texts = torch.randint(symbols, (40, 70), generator=generator)
                rows = torch.randperm(40, generator=generator)
                positions = torch.randint(64, (40,), generator=generator)
                positions[:4] = torch.tensor([0, 1, 2, 63])
                for k in (1, 3, 6):
                    expected = look_up(texts, rows, positions, k)
                    assert torch.equal(lookup.look_up(texts, rows, positions, k, LONGEST, NONE), expected)
                    assert (expected >= 0).any()
        """
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], check=True, env={**os.environ, "TRITON_INTERPRET": "1"}
        )

    @pytest.mark.parametrize("engine", ["dense", "paged"])
    def test_texts_are_forgotten_with_their_rows(self, small_model: GPT2, plain: LLM, engine: str) -> None:
        llm = LLM(small_model, engine=engine, speculate="lookup", adaptive_drafts=False)
        prompts, params = [[1, 2, 3] * 9, [5, 6] * 10], SamplingParams(temperature=0, seed=1, max_tokens=40, **FREE)
        assert seen(llm.generate(prompts, params)) == seen(plain.generate(prompts, params))
        assert llm.stats.verify_steps > 0
        drafter: Any = llm.core.drafter  # type: ignore[attr-defined]
        gc.collect()
        assert isinstance(drafter, PromptLookup)
        assert len(drafter._known) == 0


def tossing(llm: LLM, expected: Sequence[Completion], alpha: float) -> LLM:
    core: Any = llm.core
    coin = CoinDrafter(llm.max_batch, llm.max_len, llm.config.draft_tokens, llm.model.device)
    coin.begin({c.seed: c.token_ids for c in expected}, alpha)
    core.begin_with(coin)
    return llm


class TestCoin:
    @pytest.mark.parametrize("engine", ["dense", "dense-graph", "paged-graph"])
    @pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
    def test_the_share_of_accepted_drafts(self, small_model: GPT2, plain: LLM, alpha: float, engine: str) -> None:
        """Each draft behind right ones is right with probability alpha; and the tokens are the same."""
        params = [SamplingParams(seed=n, max_tokens=80, **FREE) for n in range(12)]
        expected = plain.generate(prompts_of([3] * 12), params)
        make = graph_llm if engine.endswith("graph") else LLM
        llm = make(small_model, engine=engine, max_batch=4, speculate="lookup", draft_tokens=1, adaptive_drafts=False)
        assert seen(tossing(llm, expected, alpha).generate(prompts_of([3] * 12), params)) == seen(expected)
        assert llm.stats.draft_tokens > 400
        assert llm.stats.accepted_tokens / llm.stats.draft_tokens == pytest.approx(alpha, abs=0.06)


class Foresees(Scripted):
    """Every look finds so many right; of which rows it was asked."""

    def __init__(self, right: int) -> None:
        super().__init__({}, Random(1))
        self.count, self.asked = right, list[Row]()

    def foreseen(self, row: Row, most: int) -> int:
        self.asked.append(row)
        return self.count


class TestAdaptive:
    def test_a_row_brings_as_many_as_are_used(self) -> None:
        row = Acceptance()
        assert row.worth(2) == 2
        assert row.worth(64) == 3  # 0.6 ** 3 is 0.216
        for _ in range(5):
            row.note(4, 0)
        assert row.share == pytest.approx(0.6 * 0.85**5)
        assert row.worth(4) == 1
        for _ in range(3):
            row.note(1, 0)
        assert [row.worth(4) for _ in range(17)] == [0] * 15 + [1, 1]  # one, until it has been seen to be wrong
        row.note(1, 0)
        assert row.worth(4) == 0
        for _ in range(30):
            row.note(4, 4)
        assert row.worth(64) == 64
        row.note(4, 2)  # of the third it is known that it was wrong; the fourth says nothing
        assert row.share == pytest.approx(0.85, abs=1e-3)

    def test_room_is_a_limit(self) -> None:
        row = Acceptance()
        assert [row.worth(most) for most in (0, 1, 2)] == [0, 1, 2]

    @staticmethod
    def run(trial: Trial, steps: int, cost: Callable[[bool], tuple[float, float]]) -> list[bool]:
        """How each step ran, where steps take and give what `cost` says of the two ways."""
        ways = []
        for _ in range(steps):
            ways.append(trial.drafts)
            trial.note(*cost(trial.drafts))
        return ways

    def test_the_faster_way_runs(self) -> None:
        for seconds, pays in ((2.7, True), (2.8, False)):
            ways = self.run(Trial(), 24 + 32, lambda drafts: (seconds, 3.0) if drafts else (1.0, 1.0))  # noqa: B023
            assert ways == [False] * 8 + [True] * 16 + [pays] * 32

    @staticmethod
    def plain_steps(
        adaptive: Adaptive, drafter: Any, rows: list[Row], limit: int = 200, alone: Sequence[Row] = ()
    ) -> int:
        """Steps until drafts are tried."""
        for step in range(limit):
            if adaptive.pays(len(rows)):
                return step
            if not adaptive.rests():
                adaptive.look(drafter, rows, 4)
                adaptive.note_step(len(rows), 1.0, len(rows), alone)
        return limit

    def test_a_trial_begins_where_right_drafts_were_foreseen(self, plain: LLM) -> None:
        """Of one row in turn, that has tokens enough; a drafter that foresees nothing is tried as it is."""
        (request,) = plain.requests([[1]], SamplingParams())
        rows = [Row(request, 0.0, token_ids=[1] * count) for count in (4, 5, 6)]
        seen = Foresees(0)
        assert self.plain_steps(Adaptive(), seen, rows) == 200
        assert seen.asked == [rows[n % 3] for n in range(1, 200) if n % 3][: len(seen.asked)]
        assert 2 / 3 * 200 / SELDOM <= len(seen.asked) < 2 / 3 * 200 / EVERY
        assert self.plain_steps(Adaptive(), Foresees(4), rows[1:]) == 8
        assert 20 < self.plain_steps(Adaptive(), Foresees(1), rows[1:]) < 60
        assert self.plain_steps(Adaptive(), Scripted({}, Random(1)), rows) == 8

    def test_what_drafts_cost_is_remembered(self, plain: LLM) -> None:
        """For a while: what was measured may have been another program's doing."""
        (request,) = plain.requests([[1]], SamplingParams())
        rows = [Row(request, 0.0, token_ids=[1] * 9)]
        for cost, expected in ((2.0, SOONEST), (9.0, SOONEST + FORGOTTEN * 2 * SOONEST)):
            adaptive = Adaptive()
            self.plain_steps(adaptive, Foresees(4), rows)
            while adaptive.pays(1):  # all of a sudden they are wrong
                adaptive.note_step(1, cost, 1)
            assert expected <= self.plain_steps(adaptive, Foresees(4), rows, 5000) <= expected + EVERY

    def test_plain_steps_that_decide_nothing_go_by(self, plain: LLM) -> None:
        (request,) = plain.requests([[1]], SamplingParams())
        adaptive, noted = Adaptive(), list[int]()
        watch(adaptive._trial(1), "note", lambda *given: noted.append(given[-1]))
        assert self.plain_steps(adaptive, Foresees(0), [Row(request, 0.0, token_ids=[1] * 9)]) == 200
        assert noted == [1] * 8 + [EVERY] + [SELDOM] * ((200 - 8 - EVERY) // SELDOM)

    @pytest.mark.parametrize("rows", [1, 4, 16])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_text_that_repeats_itself_is_drafted_and_no_other(
        self, no_collections: None, monkeypatch: pytest.MonkeyPatch, rows: int, temperature: float
    ) -> None:
        """Greedy text soon goes round. Steps take here what their kind takes, and not what the clock says."""
        shape = ModelConfig(n_layer=1, n_head=2, n_embd=16, n_positions=320, vocab_size=211)
        model, noted = random_model(shape, seed=1, std=0.1), Adaptive.note_step
        monkeypatch.setattr(
            Adaptive,
            "note_step",
            lambda self, rows, _, *given: noted(self, rows, 1 + 0.3 * self.pays(rows), *given),
        )
        params = [SamplingParams(temperature=temperature, seed=n, max_tokens=300, **FREE) for n in range(rows)]
        steps, texts = {}, []
        for adaptive in (False, True):
            llm = graph_llm(
                model, "dense-graph", recorder=Rerun(), max_batch=rows, speculate="lookup", draft_tokens=4,
                adaptive_drafts=adaptive,
            )  # fmt: skip
            core: Any = llm.core
            waits: list[int] = []
            watch(core, "_take_one", lambda: waits.append(1))  # noqa: B023
            texts.append(seen(llm.generate(prompts_of([5] * rows), params)))
            steps[adaptive] = llm.stats.decode_steps
            print(adaptive, len(waits), llm.stats)
        assert texts[0] == texts[1]
        if temperature:
            assert llm.stats.verify_steps == 0
            assert len(waits) <= core.lag  # when no row is left
        else:
            assert steps[True] < steps[False] + 50 < 150

    def test_what_a_capture_takes_is_no_steps_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shape = ModelConfig(n_layer=1, n_head=2, n_embd=16, n_positions=64, vocab_size=211)
        times = list[float]()
        monkeypatch.setattr(Adaptive, "note_step", lambda self, rows, seconds, *_: times.append(seconds))
        llm = graph_llm(random_model(shape, seed=1), "dense-graph", recorder=Rerun(), max_batch=2, speculate="lookup")
        runner = runner_of(llm)
        capture = runner._capture

        def slow(*given: Any) -> None:
            capture(*given)
            llm.stats.capture_s += 1000  # as much as the clock says less

        monkeypatch.setattr(runner, "_capture", slow)
        llm.generate(prompts_of([5, 5]), SamplingParams(temperature=0, max_tokens=20, **FREE))
        assert min(times) < -900
        assert sum(seconds > 0 for seconds in times) > 10

    def test_drafts_that_no_longer_pay_end(self) -> None:
        trial = Trial()
        self.run(trial, 600, lambda drafts: (2.0, 3.0) if drafts else (1.0, 1.0))
        ways = self.run(trial, 300, lambda drafts: (2.0, 1.0) if drafts else (1.0, 1.0))
        assert 10 < sum(ways) < 32  # as soon as the mean of 32 steps has fallen below 2 tokens

    def test_drafts_that_pay_again_are_found(self) -> None:
        trial = Trial()
        self.run(trial, 200, lambda drafts: (2.0, 1.0) if drafts else (1.0, 1.0))
        ways = self.run(trial, 400, lambda drafts: (2.0, 3.0) if drafts else (1.0, 1.0))
        assert ways == sorted(ways)
        assert sum(ways) > 300

    def test_plain_steps_are_timed_again(self) -> None:
        """Texts grow, and with them what a plain step takes: here to what makes drafts pay less than nothing."""
        trial, plain = Trial(), iter([10.0] * 8)
        self.run(trial, 1031, lambda drafts: (10.0, 2.0) if drafts else (next(plain), 1.0))
        ways = self.run(trial, 8 + 1 + 16, lambda drafts: (10.0, 2.0) if drafts else (4.0, 1.0))
        assert ways == [True] + [False] * 8 + [True] * 8 + [False] * 8
        assert not trial.drafts

    @pytest.mark.parametrize("waiting", [False, True])
    def test_where_nobody_waits_the_slowest_row_counts(self, plain: LLM, waiting: bool) -> None:
        """Three rows get four tokens a step with drafts, the last one gets one, and the batch waits for it."""
        (request,) = plain.requests([[1]], SamplingParams())
        adaptive, rows = Adaptive(), [Row(request, 0.0) for _ in range(4)]
        ways = []
        for _ in range(300):
            ways.append(adaptive.pays(4))
            for row in rows:
                row.token_ids += [1] * (4 if ways[-1] and row is not rows[3] else 1)
            adaptive.note_step(4, 1.3 if ways[-1] else 1.0, 13 if ways[-1] else 4, () if waiting else rows)
        assert sum(ways) > 280 if waiting else 8 <= sum(ways) < 80

    def test_one_look_that_finds_nothing_keeps_a_batch_plain(self, plain: LLM) -> None:
        """The looks of the others promise much; but it is over when that row is."""
        (request,) = plain.requests([[1]], SamplingParams())
        rows = [Row(request, 0.0, token_ids=[1] * 9) for _ in range(8)]

        class Some(Foresees):
            def foreseen(self, row: Row, most: int) -> int:
                return 0 if row is rows[3] else 4

        for alone, tried in ((rows, False), ((), True)):
            adaptive, drafts = Adaptive(), 0
            for _ in range(200):
                adaptive.note_step(8, 1.0, 8, alone)
                adaptive.look(Some(4), rows, 4)
                drafts += adaptive.pays(8)
            assert bool(drafts) == tried

    @pytest.mark.parametrize("wrong", [1, 100])
    def test_the_row_that_seems_the_slowest_is_looked_at_again(self, plain: LLM, wrong: int) -> None:
        """A single look that finds nothing does not keep 64 rows plain; one that goes on to find nothing does."""
        (request,) = plain.requests([[1]], SamplingParams())
        rows = [Row(request, 0.0, token_ids=[1] * 9) for _ in range(64)]
        asked: list[Row] = []

        class Errs(Foresees):
            def foreseen(self, row: Row, most: int) -> int:
                asked.append(row)
                return 0 if row is rows[1] and asked.count(row) <= wrong else 4

        tried = self.plain_steps(Adaptive(), Errs(4), rows, 256, rows)
        assert (tried < 128) == (wrong == 1)
        assert asked[:9] == [*rows[1:9], rows[1]]

    def test_a_new_batch_begins_plain(self) -> None:
        adaptive = Adaptive()
        for _ in range(40):
            adaptive.rests() or adaptive.note_step(2, 1.0, 8 if adaptive.pays(2) else 2)
        assert adaptive.pays(2)
        adaptive.begin()
        ways = []
        for _ in range(12):
            ways.append(adaptive.pays(2))
            adaptive.rests() or adaptive.note_step(2, 1.0, 8 if ways[-1] else 2)
        assert ways == [False] * 8 + [True] * 4

    def test_steps_go_by_behind_plain_ones_alone(self) -> None:
        """Where drafts end, the next step is the first plain one, and that must be asked for."""
        adaptive, drafted = Adaptive(), 0
        for _ in range(200):
            pays = adaptive.pays(1)
            drafted += pays
            if not adaptive.rests():
                adaptive.note_step(1, 9.0 if pays else 1.0, 1)
                assert not (pays and adaptive.rests())
        assert drafted == 4 + 4 + 4  # after 8 plain steps, 32 and 64 more

    def test_what_was_foreseen_of_others_starts_no_trial(self, plain: LLM) -> None:
        """Where a batch ends, nearly all drafts would have been right; of the next, none is."""
        (request,) = plain.requests([[1]], SamplingParams())
        adaptive, cost = Adaptive(), 1.4
        for foreseen, tried in ((4, True), (0, False)):
            rows = [Row(request, 0.0, token_ids=[1] * 9) for _ in range(64)]
            adaptive.begin()
            assert (self.plain_steps(adaptive, Foresees(foreseen), rows, 256, rows) < 256) == tried
            for _ in range(200 * tried):
                adaptive.look(Foresees(4), rows, 4)
                adaptive.note_step(64, cost, 64 * 5, rows)

    def test_trials_cost_little(self) -> None:
        """Steps that take half as long again for nothing, or a little longer."""
        for seconds in (1.02, 1.2, 1.5, 4.0):
            cost = {True: (seconds, 1.0), False: (1.0, 1.0)}
            ways = self.run(Trial(), 4000, cost.__getitem__)
            assert sum(cost[way][0] for way in ways) <= 4000 * 1.025, seconds

    def test_a_step_that_compiles_decides_nothing(self) -> None:
        slow = iter([900.0])
        ways = self.run(Trial(), 30, lambda drafts: (next(slow, 2.0), 3.0) if drafts else (1.0, 1.0))
        assert ways[8:] == [True] * 22

    def test_rows_are_told_apart_by_about_how_many_there_are(self) -> None:
        adaptive = Adaptive()
        for _ in range(24):
            adaptive.note_step(64, 9.0 if adaptive.pays(64) else 1.0, 64)
            adaptive.note_step(1, 1.0, 4 if adaptive.pays(1) else 1)
        assert [adaptive.pays(rows) for rows in (1, 64, 100, 127)] == [True, False, False, False]

    @pytest.mark.parametrize("lag", [0, 2])
    def test_on_and_off_and_on_changes_no_token(
        self, small_model: GPT2, plain: LLM, monkeypatch: pytest.MonkeyPatch, lag: int
    ) -> None:
        """Where drafts do not pay the engine is some steps behind, and catches up ahead of the next ones."""
        prompts = prompts_of(LENGTHS)
        expected = plain.generate(prompts, MIXED)
        llm = speculating(small_model, Scripted(texts_of(expected), Random(4)), engine="paged", max_batch=2)
        core: Any = llm.core
        core.adaptive, core.lag, coin = Adaptive(), lag, Random(7)
        monkeypatch.setattr(Adaptive, "pays", lambda self, rows: coin.random() < 0.5)
        behind, collect = [], core._collect

        def collected(lag: int) -> list[Row]:
            behind.append(len(core._in_flight))
            settled: list[Row] = collect(lag)
            assert all(isinstance(step, InFlight) for step in core._in_flight)  # drafts are settled at once
            return settled

        monkeypatch.setattr(core, "_collect", collected)
        assert seen(llm.generate(prompts, MIXED)) == seen(expected)
        assert max(behind) == lag + 1
        assert llm.stats.verify_steps > 10
        assert llm.stats.decode_steps - llm.stats.verify_steps > 10

    def test_wrong_drafts_are_given_up(self, small_model: GPT2, plain: LLM) -> None:
        params = SamplingParams(temperature=0, seed=1, max_tokens=90, **FREE)
        expected = plain.generate(prompts_of([4]), params)
        llm = speculating(small_model, Scripted(texts_of(expected), Random(4), 0.0), engine="dense")
        core: Any = llm.core
        core.adaptive = Adaptive()
        assert seen(llm.generate(prompts_of([4]), params)) == seen(expected)
        assert 0 < llm.stats.draft_tokens < 30


GRAPHED = SamplingParams(seed=0, max_tokens=30, **FREE), *MIXED  # rows without penalties and logprobs


def graphed(model: GPT2, engine: str, texts: dict[Any, Sequence[int]], right: float = 0.8, **config: Any) -> LLM:
    """An engine whose steps a fake records and replays."""
    llm = graph_llm(model, engine, speculate="lookup", adaptive_drafts=False, **{"draft_tokens": 6, **config})
    core: Any = llm.core
    core.begin_with(Scripted(texts, Random(3), right))
    return llm


@pytest.mark.parametrize("engine", ["dense-graph", "paged-graph"])
class TestCaptured:
    @pytest.mark.parametrize("one_by_one", [0, 8])
    def test_replayed_verification(self, small_model: GPT2, plain: LLM, engine: str, one_by_one: int) -> None:
        """Ragged, padded in rows and drafts, refilled, up to the context's end; few tokens each attended by itself."""
        prompts = prompts_of([2, *LENGTHS])
        expected = plain.generate(prompts, GRAPHED)
        llm = graphed(small_model, engine, texts_of(expected), read_multiple=32)
        if engine == "paged-graph":
            cache: Any = llm.core.cache
            cache.one_by_one = one_by_one
        assert seen(llm.generate(prompts, GRAPHED)) == seen(expected)
        stats: Any = llm.stats
        assert stats.verify_steps > 20
        assert stats.accepted_tokens > 50
        assert stats.replayed_steps == stats.decode_steps
        assert not [reason for reason in stats.fallbacks if "draft" in reason]

    def test_what_is_not_captured_is_counted(self, small_model: GPT2, plain: LLM, engine: str) -> None:
        prompts = prompts_of(LENGTHS)
        expected = plain.generate(prompts, SCORED)
        llm = graphed(small_model, engine, texts_of(expected), max_batch=3, prefill_chunk=5)
        llm.core.scheduler.mixed = engine == "paged-graph"
        assert seen(llm.generate(prompts, SCORED)) == seen(expected)
        stats: Any = llm.stats
        assert stats.fallbacks["drafts beside penalties or logprobs"] > 0
        assert (stats.fallbacks["drafts beside prompts"] > 0) == (engine == "paged-graph")

    def test_warm_up_leaves_nothing_to_capture(self, small_model: GPT2, plain: LLM, engine: str) -> None:
        prompts = prompts_of([3, 8, 5])
        expected = plain.generate(prompts, GRAPHED[:3])
        llm = graphed(small_model, engine, texts_of(expected), max_batch=2, draft_tokens=3)
        told: list[tuple[int, int]] = []
        llm.warm_up(lambda done, total: told.append((done, total)))
        stats: Any = llm.stats
        captures = stats.captures
        assert told[-1] == (captures, captures)
        verified = [key for key in runner_of(llm).graphs if isinstance(key, VerifyKey)]
        assert not any(isinstance(key.sampler, PenaltySampler) for key in verified)
        assert {(key.rows, key.columns) for key in verified} == {(rows, 1 + n) for rows in (1, 2) for n in (1, 2, 3)}
        assert seen(llm.generate(prompts, GRAPHED[:3])) == seen(expected)
        assert stats.captures == captures
        assert stats.replayed_steps == stats.decode_steps


@pytest.mark.parametrize(
    "old, new",
    [
        ("each.step.add_((places - position).flatten())", "each.step.add_(0)"),
        ("rows.row[:, None], state.dummy", "rows.row[:, None], rows.row[:, None]"),
        ("(accepted + 1) * going", "(accepted + 1)"),
        ("(accepted + 1) * going", "going.long()"),
        (".cumprod(1)", ".int()"),
        ("torch.where(real, places, 0)", "torch.where(real, position, 0)"),
    ],
)
def test_captured_steps_tell(
    small_model: GPT2, plain: LLM, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    edited(step_module, "verify_rows", old, new)(monkeypatch)
    monkeypatch.setattr(graphs_module, "verify_rows", step_module.verify_rows)
    prompts, params = prompts_of([2, 30, 9]), GRAPHED[:3]  # in a graph of four rows
    expected = plain.generate(prompts, params)
    llm = graphed(small_model, "paged-graph", texts_of(expected), draft_tokens=3)
    try:
        same = seen(llm.generate(prompts, params)) == seen(expected) and not llm.core.state.position.any()
    except (RuntimeError, LookupError, ValueError):
        same = False
    assert not same


class TestFrontDoor:
    @pytest.mark.parametrize(
        "config, words",
        [
            ({"speculate": True}, "speculate must be 'lookup', 'ngram', a model, or None, not True"),
            ({"speculate": ""}, "speculate must be 'lookup', 'ngram', a model, or None, not ''"),
            ({"speculate": [1]}, r"speculate must be 'lookup', 'ngram', a model, or None, not \[1\]"),
            ({"speculate": "no-such-model"}, "there is no model 'no-such-model'"),
            ({"speculate": "lookup", "adaptive_drafts": 1}, "adaptive_drafts must be True or False, not 1"),
            ({"speculate": "lookup", "draft_tokens": 0}, "draft_tokens must be a whole number from 1 to 64, not 0"),
        ],
    )
    def test_refused_by_name(self, small_model: GPT2, config: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            LLM(small_model, engine="dense", **config)

    def test_the_small_model_drafts_for_itself(self) -> None:
        params = [SamplingParams(temperature=0, max_tokens=40), SamplingParams(seed=3, max_tokens=40, stop=["."])]
        prompts = ["Once upon a time there was", "The dog saw a big"]
        expected = LLM(engine="dense").generate(prompts, params)
        for speculate in ("small", "lookup"):
            llm = LLM(engine="paged", speculate=speculate, adaptive_drafts=False)
            done = llm.generate(prompts, params)
            assert [c.text for c in done] == [c.text for c in expected]
            assert llm.stats.verify_steps > 0
            assert (llm.stats.accepted_tokens == llm.stats.draft_tokens) == (speculate == "small")

    def test_engines_with_graphs(self, small_model: GPT2, plain: LLM) -> None:
        """They verify operation by operation, and replay the steps without drafts."""
        prompts, params = prompts_of(LENGTHS), MIXED
        expected = plain.generate(prompts, params)
        for engine in ("dense-graph", "paged-graph", "fused"):
            llm = speculating(small_model, Scripted(texts_of(expected), Random(1)), engine=engine, max_batch=3)
            assert seen(llm.generate(prompts, params)) == seen(expected)
            assert llm.stats.verify_steps > 0
