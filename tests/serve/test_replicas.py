"""Several engines behind one queue: who gets what, and that nobody can tell when one of them dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer import LLM, AsyncLLM, Completion, SamplingParams
from nanoinfer.config import EngineConfig
from nanoinfer.engine.loop import Mailbox
from nanoinfer.engine.stats import Gauges
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.parallel import replicas as module
from nanoinfer.parallel.replicas import WORTH, ReplicaLoop, devices
from nanoinfer.remote.llm import ProcessLLM
from nanoinfer.remote.loop import Row
from nanoinfer.requests import Request
from tests.conftest import prompts_of
from tests.serve.serving import children

SETTINGS: dict[str, Any] = {"engine": "paged", "device": "cpu", "threads": 1, "max_batch": 6}
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=0.9, seed=7)


class Played:
    """An engine that is played by the test: its rows end when the test says so."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.failure: BaseException | None = None
        self.closed, self.link = False, SimpleNamespace(close=lambda: None)
        self.died: Future[BaseException] = Future()
        self.leave_behind: Callable[[list[Any]], list[Any]] = lambda rows: rows

    @property
    def load(self) -> int:
        return len(self.rows)

    def submit(self, requests: Sequence[Any], mailbox: Mailbox, asked: float, every_token: bool) -> list[Any]:
        made = [Row(request, mailbox, asked, every_token) for request in requests]
        self.rows += made
        return made

    def begin(self, rows: list[Any], asked: float, every_token: bool) -> None:
        self.rows += rows

    def cancel(self, rows: Sequence[Any]) -> None:
        for row in rows:
            if row in self.rows:
                self.rows.remove(row)

    def die(self) -> list[Any]:
        rows, self.rows, self.failure = self.rows, [], RuntimeError("killed")
        with pytest.warns(RuntimeWarning, match="an engine has died, . are left: killed"):
            return self.leave_behind(rows)


def played(count: int) -> tuple[ReplicaLoop, list[Any]]:
    loops: list[Any] = [Played() for _ in range(count)]
    return ReplicaLoop(loops, 16), loops


def sent(loop: ReplicaLoop, texts: list[list[int]]) -> list[Row]:
    requests = [Request(0, tuple(text), SamplingParams(max_tokens=4), 0, 4, frozenset()) for text in texts]
    return [row for request in requests for row in loop.submit([request], Mailbox(print), 0.0)]


def test_equal_requests_are_dealt_out_evenly() -> None:
    """T15: also in a burst ahead of any news; and where all loads are 0, in turn."""
    loop, engines = played(2)
    sent(loop, prompts_of([40] * 64))
    assert [each.load for each in engines] == [32, 32]
    loop, engines = played(3)
    for text in prompts_of([5] * 9):
        sent(loop, [text])
        for each in engines:
            each.rows.clear()
    assert list(loop._sent.values()) == [3, 3, 3]


def test_the_one_that_knows_the_beginning_gets_a_few_more_and_no_crowd() -> None:
    (begun,) = prompts_of([64])
    loop, engines = played(2)
    sent(loop, [begun])
    for each in engines:
        each.rows.clear()
    sent(loop, [[*begun, 1, 2, 3]])  # equal loads, and the other one was sent fewer
    assert [each.load for each in engines] == [1, 0]
    sent(loop, [[*begun, 7, n] for n in range(63)])
    assert abs(engines[0].load - engines[1].load) <= WORTH
    assert sum(each.load for each in engines) == 64


def test_an_engine_that_dies_is_taken_out_and_its_rows_are_dealt_out() -> None:
    loop, engines = played(3)
    rows = sent(loop, prompts_of([9] * 6))
    assert engines[0].die() == []
    assert [each.load for each in engines] == [0, 3, 3]
    assert not loop.died.done()
    sent(loop, prompts_of([9] * 2))
    assert [each.load for each in engines] == [0, 4, 4]
    moved = [row for row in rows if row in engines[1].rows and row.moved]
    assert engines[1].die() == moved  # twice is bad luck, or the row's own fault
    assert len(moved) == 1
    assert engines[2].load == 8 - len(moved)
    engines[2].die()
    with pytest.raises(RuntimeError, match="the engine has died: killed"):
        sent(loop, [[1]])


@pytest.mark.parametrize("when", ["ahead of", "behind"])
def test_a_row_that_is_cancelled_between_two_engines(when: str) -> None:
    """It is in neither when the cancel comes; nothing of it is computed in the second."""
    loop, (first, second) = played(2)
    (row, _) = sent(loop, prompts_of([9] * 2))
    begin = second.begin

    def cancelled(rows: list[Row], asked: float, every_token: bool) -> None:
        if when == "behind":
            begin(rows, asked, every_token)
        loop.cancel(rows)
        if when == "ahead of":
            begin(rows, asked, every_token)

    second.begin = cancelled
    assert row in first.rows
    assert first.die() == []
    assert row not in second.rows
    assert second.load == 1


def test_each_replica_has_devices_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(found: int) -> None:
        monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=f"{found}\n".encode()))

    count(4)
    assert devices(EngineConfig(tensor_parallel=2, replicas=2)) == [{"device": "cuda:0"}, {"device": "cuda:2"}]
    assert devices(EngineConfig(device="cuda:1", replicas=2)) == [{"device": "cuda:1"}, {"device": "cuda:2"}]
    assert devices(EngineConfig(device="cpu", replicas=5)) == [{}] * 5
    with pytest.raises(ValueError, match="replicas 3 need 6 CUDA devices, but there are 4"):
        devices(EngineConfig(tensor_parallel=2, replicas=3))
    count(0)
    assert devices(EngineConfig(replicas=2)) == [{}] * 2
    with pytest.raises(ValueError, match="replicas 2 need 2 CUDA devices, but there are 0"):
        devices(EngineConfig(device="cuda", replicas=2))


def test_an_llm_of_several_engines(folder: Path, small_model: GPT2) -> None:
    """`generate` and `stream` in any thread; each engine has its share, and the tokens are those of one."""
    prompts, params = prompts_of([3, 30, 12, 7]), [replace(SAMPLED, seed=n, max_tokens=20) for n in range(4)]
    expected = [c.token_ids for c in LLM(small_model, engine="paged").generate(prompts, params)]
    with LLM(folder, replicas=2, **SETTINGS) as llm:
        assert (llm.engine, llm.max_batch, llm.facts.max_batch, llm.max_len) == ("paged", 12, 12, 100)
        with ThreadPoolExecutor(4) as pool:
            for done in pool.map(lambda _: llm.generate(prompts, params), range(4)):
                assert [c.token_ids for c in done] == expected
        assert llm.loop._sent == dict.fromkeys(llm.loop.loops, 8)
        assert llm.stats.requests == 16
        streams = [llm.stream([prompt], GREEDY) for prompt in prompts_of([4, 4])]
        for stream in streams:
            next(stream)
        assert [each.load for each in llm.loop.loops] == [1, 1]
        for stream, left in zip(streams, ([0, 1], [0, 0]), strict=True):
            stream.close()  # rows of two engines have no number in common
            assert [each.load for each in llm.loop.loops] == left
        with pytest.raises(ValueError, match="forward_logits needs the model in this process: leave replicas out"):
            llm.forward_logits([[1]])


def said(one: Completion) -> tuple[Any, ...]:
    """What must be the same, of its logprobs for which tokens they are."""
    records = [*(one.logprobs or ()), *(one.prompt_logprobs or ())]
    return one.token_ids, one.text, [record and record.token_id for record in records]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_rows_go_on_behind_their_tokens_until_no_engine_is_left(folder: Path, small_model: GPT2) -> None:
    """A rank of one of two is killed while all rows stream: it takes its engine along, and each row goes on.

    The tokens, texts and logprobs are those of one engine. A stop string that begins in one engine ends its row in the
    other; the last engine's end is the end of all.
    """
    prompts = prompts_of([3, 30, 12, 7])
    params = [
        GREEDY,
        SAMPLED,
        replace(SAMPLED, frequency_penalty=0.8, presence_penalty=0.3, logprobs=2, prompt_logprobs=1),
        replace(SAMPLED, top_k=20, seed=9, logprobs=1),
    ]
    with LLM(small_model, engine="paged", prefix_caching=True, preemption=True) as one:
        (whole,) = one.generate(prompts[:1], GREEDY)
        params[0] = replace(GREEDY, stop=(one.tokenizer.decode(whole.token_ids[:30]),))
        expected = one.generate(prompts, params)
    assert expected[0].finish_reason == "stop"

    async def main() -> None:
        llm = AsyncLLM(folder, replicas=2, tensor_parallel=2, **SETTINGS)
        first, second = llm.llm.loop.loops
        llm.pace(0.02)
        done, seen, killed = {}, dict.fromkeys(range(4), 0), False
        async for piece in llm.stream(prompts, params):
            seen[piece.index] += len(piece.token_ids)
            if not killed and min(seen.values()) >= 2:
                killed, went = True, (first.load, second.load)
                (rank,) = children(first.process.pid)
                os.kill(rank, signal.SIGKILL)
                llm.pace(0)
            if piece.completion:
                done[piece.index] = piece.completion
        assert went == (2, 2)
        first.process.wait(60)
        assert llm.alive
        for found in ([done[index] for index in range(4)], await llm.generate(prompts, params)):
            assert list(map(said, found)) == list(map(said, expected))
        assert llm.gauges.running == 0
        stream = llm.stream(prompts, GREEDY)
        await anext(stream)
        second.process.kill()
        with pytest.raises(RuntimeError, match="killed by SIGKILL"):
            async for _ in stream:
                pass
        assert "SIGKILL" in str(await asyncio.wait_for(asyncio.wrap_future(llm.died), 60))
        assert not llm.alive
        with pytest.raises(RuntimeError, match="the engine has died"):
            llm.submit([[1]], GREEDY)
        assert llm.gauges == Gauges()
        llm.close()

    asyncio.run(main())


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_rank_of_an_engine_dies_while_nothing_runs(folder: Path) -> None:
    """It takes its engine along, and the front hears of it though no row is there to bring news."""

    async def run() -> None:
        llm = ProcessLLM(folder, tensor_parallel=2, **SETTINGS)
        (rank,) = children(llm.llm.loop.process.pid)
        os.kill(rank, signal.SIGKILL)
        assert "rank 1 has ended" in str(await asyncio.wait_for(asyncio.wrap_future(llm.died), 60))
        llm.close()

    asyncio.run(run())


def test_what_cannot_be_made_is_refused(folder: Path, small_model: GPT2) -> None:
    with pytest.raises(ValueError, match="replicas must be a whole number from 1 to 256, not '2'"):
        LLM(folder, replicas="2", **SETTINGS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="speculate must be a name or a path for another process, not a GPT2"):
        LLM(folder, replicas=2, speculate=small_model, **SETTINGS)
