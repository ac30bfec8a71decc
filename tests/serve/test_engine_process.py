"""The engine in a process of its own: the same answers, and an end to everything, whichever process ends first."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, Completion, Piece, SamplingParams
from nanoinfer.async_llm import TokenStream
from nanoinfer.engine.stats import Gauges
from nanoinfer.remote import loop as remote
from nanoinfer.remote.llm import ProcessLLM
from nanoinfer.remote.loop import EngineDied
from tests.conftest import prompts_of
from tests.serve.serving import gone, until

SETTINGS: dict[str, Any] = {"engine": "paged", "device": "cpu", "threads": 1, "max_batch": 6, "kv_blocks": 12}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = replace(GREEDY, max_tokens=90)
FATAL = 210  # a prompt with this token makes a step fail, where `broken` is used

Processes = list["subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[ProcessLLM]:
    llm = ProcessLLM(folder, **SETTINGS)
    yield llm
    llm.close()


@pytest.fixture
def llm(shared: ProcessLLM) -> Iterator[ProcessLLM]:
    """One for all tests that leave it as it was; each has an event loop of its own."""
    yield shared
    assert shared.alive
    until(lambda: shared.gauges[:3] == (0, 0, 0))
    assert not shared.llm.loop._rows
    assert len(shared._outlets) == 1


@pytest.fixture(scope="module")
def alone(folder: Path) -> LLM:
    """Runs a prompt alone."""
    return LLM(folder, engine="dense", device="cpu", threads=1, max_batch=1)


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Processes]:
    """The processes that a test starts: none may be left."""
    spawn, processes = remote.spawn, []

    def spawned(*arguments: str) -> Any:
        started = spawn(*arguments)
        processes.append(started[0])
        return started

    if "llm" in request.fixturenames:
        request.getfixturevalue("shared")  # ahead of the patch
    monkeypatch.setattr(remote, "spawn", spawned)
    yield processes
    gc.collect()
    until(lambda: all(process.poll() is not None for process in processes))


def broken(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> ProcessLLM:
    """One in which this code has run."""
    spawn = remote.spawn
    with monkeypatch.context() as patch:
        patch.setattr(remote, "spawn", lambda module: spawn(module, code))
        return ProcessLLM(folder, **SETTINGS)


async def read(stream: TokenStream) -> list[Piece]:
    return [piece async for piece in stream]


def assert_same(left: Completion, right: Completion) -> None:
    """But for times; logprobs nearly, since another batch is another order of additions."""
    plain = [replace(one, metrics=right.metrics, logprobs=None, prompt_logprobs=None) for one in (left, right)]
    assert plain[0] == plain[1]
    for mine, theirs in ((left.logprobs, right.logprobs), (left.prompt_logprobs, right.prompt_logprobs)):
        near = [one and (one.token_id, pytest.approx(one.logprob, abs=1e-3), len(one.top)) for one in theirs or ()]
        assert [one and (one.token_id, one.logprob, len(one.top)) for one in mine or ()] == near
        assert (mine is None) == (theirs is None)


MIXED = [
    SamplingParams(temperature=0, max_tokens=30, seed=1),
    SamplingParams(temperature=0.8, max_tokens=90, seed=5, n=3, ignore_eos=True),
    SamplingParams(temperature=1.2, top_k=20, max_tokens=3, seed=6, logprobs=2),
    SamplingParams(max_tokens=90, seed=2**40, presence_penalty=1.0, frequency_penalty=0.5),
    SamplingParams(temperature=0, max_tokens=1, seed=3),
    SamplingParams(temperature=0, max_tokens=0, seed=3, prompt_logprobs=1),
    SamplingParams(temperature=0.7, max_tokens=60, seed=8, logprobs=0, prompt_logprobs=3, ignore_eos=True),
    SamplingParams(temperature=0.9, max_tokens=60, seed=9, stop_token_ids=range(0, 211, 9)),
    SamplingParams(temperature=0.9, max_tokens=60, seed=10),
]


def test_its_answers_are_the_llm_s(llm: ProcessLLM, alone: LLM) -> None:
    """Of all kinds of parameters at once, and where rows are preempted; awaited and streamed."""
    prompts = prompts_of([4, 1, 9, 2, 30, 12, 40, 5, 3])
    params = list(MIXED)
    params[8] = replace(MIXED[8], stop=alone.generate(prompts[8], MIXED[8])[0].text[4:6])
    expected, before = alone.generate(prompts, params), llm.stats.preemptions

    async def main() -> None:
        done, pieces = await asyncio.gather(llm.generate(prompts, params), read(llm.stream(prompts, params)))
        assert len(done) == len(expected) == 11
        for completion, right in zip(done, expected, strict=True):
            assert_same(completion, right)
            mine = [p for p in pieces if (p.index, p.sample) == (completion.index, completion.sample)]
            assert tuple(token for piece in mine for token in piece.token_ids) == right.token_ids
            assert "".join(piece.text for piece in mine) == right.text
            assert [piece.finish_reason for piece in mine] == [None] * (len(mine) - 1) + [right.finish_reason]
            assert mine[-1].completion
            assert_same(mine[-1].completion, right)
            assert (completion.metrics.ttft_s or 1) > 0  # both processes have one clock
            assert [bool(piece.prompt_logprobs) for piece in mine[1:]] == [False] * (len(mine) - 1)

    asyncio.run(main())
    assert "stop" in [completion.finish_reason for completion in expected]
    assert llm.stats.preemptions > before


def test_it_refuses_at_the_call_what_an_llm_refuses(llm: ProcessLLM, folder: Path) -> None:
    """In the same words; nothing has been queued."""
    here, before = LLM(folder, **SETTINGS), llm.stats.requests
    assert llm.facts == here.facts

    async def main() -> None:
        assert await llm.generate([], GREEDY) == []
        for prompts, params in (([211], GREEDY), (["a", ""], GREEDY), ([1] * 100, GREEDY), ([1], [GREEDY] * 2)):
            with pytest.raises(ValueError) as expected:
                here.generate(prompts, params)
            with pytest.raises(ValueError) as refused:
                llm.stream(prompts, params)
            assert str(refused.value) == str(expected.value)

    asyncio.run(main())
    assert llm.stats.requests == before
    with pytest.raises(RuntimeError, match="no running event loop"):
        llm.stream([1], GREEDY)


def test_it_is_not_made_where_an_llm_is_not() -> None:
    for make in (LLM, ProcessLLM):
        with pytest.raises(ValueError, match=r"^max_len must be from 2 to"):
            make("random:tiny", max_len=5000)


def test_signals_of_the_terminal_do_not_end_it(llm: ProcessLLM) -> None:
    """Ctrl-C comes to both processes, and the front says when it is over."""

    async def main() -> None:
        stream = llm.stream([5], LONG)
        await anext(stream)
        os.kill(llm.llm.loop.process.pid, signal.SIGINT)
        os.kill(llm.llm.loop.process.pid, signal.SIGTERM)
        await read(stream)
        assert stream.rows[0].finish_reason == "length"

    asyncio.run(main())


FAILS = f"""
from nanoinfer.model.gpt2 import GPT2
forward = GPT2.forward
class Boom(Exception): pass
def failing(self, batch, *rest):
    if (batch.token_ids == {FATAL}).any(): raise Boom("of the GPU")
    return forward(self, batch, *rest)
GPT2.forward = failing
"""


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(r"a step failed: Boom\('of the GPU'\)", marks=pytest.mark.long, id="step"),
        pytest.param("the engine's process has ended: killed by SIGKILL", id="process"),
    ],
)
def test_its_end_is_the_end_of_every_call(folder: Path, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    """Running or waiting; what had been computed is handed out first. The other traceback is the cause's cause."""
    llm = broken(monkeypatch, folder, FAILS)

    async def main() -> None:
        llm.pace(0.02)
        unread = llm.stream([5], LONG)
        await asyncio.to_thread(until, lambda: len(unread.rows[0].token_ids) >= 3)
        llm.pace(1)  # so all have been asked for before the next step
        fatal = [llm.stream([FATAL], GREEDY) for _ in range("step" in told)]
        calls = [llm.generate([number], LONG) for number in range(10)]
        calls += [read(llm.stream([number], LONG)) for number in range(10)]
        if "killed" in told:
            asyncio.get_running_loop().call_later(0.1, os.kill, llm.llm.loop.process.pid, signal.SIGKILL)
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(end) for end in ends] == [EngineDied] * len(ends)
        assert all(re.fullmatch(told, str(end)) for end in ends)
        assert [row.ended for stream in fatal for row in stream.rows] == [True] * len(fatal)
        assert ("in failing" in str(ends[0].__cause__)) == ("step" in told)
        first = await anext(unread)
        assert first.token_ids == tuple(unread.rows[0].token_ids)
        assert len(first.token_ids) >= 3
        with pytest.raises(EngineDied, match=told):
            await anext(unread)
        assert await read(unread) == []
        assert isinstance(await asyncio.wrap_future(llm.died), EngineDied)
        assert (llm.alive, llm.gauges) == (False, Gauges())
        for late in (llm.generate([1], GREEDY), llm.warm_up()):
            with pytest.raises(RuntimeError, match=f"the engine has died: .*{told}"):
                await late
        llm.close()

    asyncio.run(main())


REFUSES = f"""
from nanoinfer.engine.queue import QueueEngine
from nanoinfer.llm import LLM
def check(self, request):
    if {FATAL} in request.prompt_token_ids: raise KeyError("check")
QueueEngine.check = check
LLM.warm_up = lambda self, on_capture: 1 // 0
"""


def test_what_fails_there_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that cannot begin, and a warm-up: who asked for it hears why, and the others go on."""
    llm = broken(monkeypatch, folder, REFUSES)

    async def main() -> None:
        calls = llm.generate([[1], [FATAL]], GREEDY), llm.generate([1], GREEDY), llm.warm_up()
        refused, done, cold = await asyncio.gather(*calls, return_exceptions=True)
        assert str(refused) == "this request has failed in the engine: KeyError('check')"
        assert len(done[0].token_ids) == 12
        assert "the warm-up failed: ZeroDivisionError" in str(cold)
        assert "in <lambda>" in str(cold.__cause__)
        assert llm.alive
        assert not llm.llm.loop.busy
        llm.close()

    asyncio.run(main())


@pytest.mark.parametrize("code, told", [("import os; os._exit(3)", "exit code 3"), ("1 / 0", "exit code 1")])
def test_an_end_before_it_is_ready(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, told: str) -> None:
    with pytest.raises(RuntimeError, match=f"the engine's process has ended: {told}"):
        broken(monkeypatch, folder, code)


@pytest.mark.long
def test_a_front_loads_no_torch_and_its_engine_ends_with_it(folder: Path) -> None:
    """Nor numpy, though a script has no `if __name__ == "__main__"`; the front is killed in the middle of a stream."""
    code = f"""
import asyncio, sys
from nanoinfer import SamplingParams
from nanoinfer.remote.llm import ProcessLLM
async def main():
    llm = ProcessLLM({str(folder)!r}, engine="fused", device="cpu", max_batch=2)
    params = SamplingParams(max_tokens=90, ignore_eos=True, logprobs=1, prompt_logprobs=1, stop=["zzz"])
    await anext(llm.stream([[1]] * 50, params))
    print({{"torch", "numpy"}} & set(sys.modules), llm.llm.loop.process.pid, flush=True)
    while True:
        await llm.generate([1], params)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as front:
        assert front.stdout
        loaded, pid = front.stdout.readline().split()
        assert loaded == "set()"
        assert not gone(int(pid))
        front.kill()
        until(lambda: gone(int(pid)))


@pytest.mark.long
def test_closing_ends_what_is_open(folder: Path) -> None:
    llm = ProcessLLM(folder, **{**SETTINGS, "kv_blocks": 6})

    async def main() -> None:
        async with llm:
            with pytest.raises(ValueError, match="raise kv_blocks"):  # it can never fit, which is said at the call
                llm.stream([1] * 70, LONG)
            streams = [llm.stream([number], LONG) for number in range(4)]
            reading = [asyncio.create_task(read(stream)) for stream in streams[1:]]
            await anext(streams[0])
            await asyncio.to_thread(llm.close)
            ends = await asyncio.gather(*reading, return_exceptions=True)
            assert [repr(end) for end in ends] == ["RuntimeError('this LLM is closed')"] * 3
        assert gone(llm.llm.loop.process.pid)
        assert (llm.alive, llm.died.done(), llm.gauges) == (False, False, Gauges())
        for call in (llm.generate([1], GREEDY), llm.warm_up()):
            with pytest.raises(RuntimeError, match="this LLM is closed"):
                await call

    asyncio.run(main())


def test_a_warm_up_tells_how_far_it_is_and_a_dropped_engine_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, started: Processes, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the engine's process prints goes to standard error, and harms no message."""
    code = """
from nanoinfer.llm import LLM
LLM.warm_up = lambda self, on_capture: [print("hello"), [on_capture(done, 3) for done in (1, 2, 3)]]
"""
    llm, seen = broken(monkeypatch, folder, code), list[tuple[int, int]]()
    asyncio.run(llm.warm_up(lambda *done: seen.append(done)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    with pytest.raises(ZeroDivisionError):
        asyncio.run(llm.warm_up(lambda *done: 1 // 0))
    assert len(asyncio.run(llm.generate([1], GREEDY))[0].token_ids) == 12
    assert "hello" in capfd.readouterr().err
    del llm
    gc.collect()
    assert [process.poll() for process in started] == [0]
