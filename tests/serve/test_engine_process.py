"""The engine in a process of its own: the same answers, and an end to everything, whichever process ends first."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import signal
import subprocess
import sys
import time
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, AsyncLLM, Completion, Piece, SamplingParams
from nanoinfer.async_llm import TokenStream
from nanoinfer.engine.loop import Mailbox
from nanoinfer.engine.scheduler import Row
from nanoinfer.engine.stats import Gauges
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import save_model
from nanoinfer.requests import Request
from nanoinfer.serve import engine_process
from nanoinfer.serve.engine_child import EngineServer
from nanoinfer.serve.engine_link import SIZE, Link, News
from nanoinfer.serve.engine_process import ProcessLLM
from nanoinfer.serve.engine_remote import EngineDied, RemoteLoop
from tests.conftest import prompts_of

SETTINGS: dict[str, Any] = {"engine": "paged", "device": "cpu", "threads": 1, "max_batch": 6, "kv_blocks": 12}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = replace(GREEDY, max_tokens=90)
FATAL = 210  # a prompt with this token makes a step fail, where `broken` is used
IDLE = Gauges(0, 0, 0, 0, 12)
PATIENCE = 60  # seconds, of a busy machine

Processes = list["subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def folder(small_model: GPT2, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_model(small_model, path)
    return path


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[ProcessLLM]:
    llm = ProcessLLM(folder, **SETTINGS)
    yield llm
    llm.close()


@pytest.fixture
def llm(shared: ProcessLLM) -> Iterator[ProcessLLM]:
    """One for all tests that leave it as it was."""
    yield shared
    assert shared.alive
    until(lambda: shared.gauges[:3] == (0, 0, 0))
    loop = shared._remote.loop
    assert not loop._rows
    assert not [row for outlet in shared._outlets.values() for row in outlet.inboxes]


@pytest.fixture(scope="module")
def alone(folder: Path) -> LLM:
    """Where a prompt runs alone."""
    return LLM(folder, engine="dense", device="cpu", threads=1, max_batch=1)


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Processes]:
    """The processes that a test starts: none may be left."""
    spawn, processes = engine_process.spawn, []

    def spawned(**code: str) -> subprocess.Popen[bytes]:
        processes.append(spawn(**code))
        return processes[-1]

    if "llm" in request.fixturenames:
        request.getfixturevalue("shared")  # ahead of the patch
    monkeypatch.setattr(engine_process, "spawn", spawned)
    yield processes
    gc.collect()
    until(lambda: all(process.poll() is not None for process in processes))


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")  # of an orphan that nobody has waited for
    return stat.is_file() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def broken(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str = "", **settings: Any) -> ProcessLLM:
    """One whose steps fail with the fatal token, and in which this code has run."""
    spawn = engine_process.spawn
    fails = f"""
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.llm import LLM
forward = GPT2.forward
class Boom(Exception): pass
def failing(self, batch, *rest):
    if (batch.token_ids == {FATAL}).any(): raise Boom("of the GPU")
    return forward(self, batch, *rest)
GPT2.forward = failing
"""
    monkeypatch.setattr(engine_process, "spawn", lambda: spawn(first=fails + code))
    made = ProcessLLM(folder, **{**SETTINGS, **settings})
    monkeypatch.setattr(engine_process, "spawn", spawn)
    return made


async def read(stream: TokenStream) -> list[Piece]:
    return [piece async for piece in stream]


def tokens(pieces: list[Piece]) -> tuple[int, ...]:
    return tuple(token for piece in pieces for token in piece.token_ids)


def same(left: Completion, right: Completion) -> bool:
    return close(left, right) and replace(left, metrics=right.metrics, logprobs=None, prompt_logprobs=None) == replace(
        right, logprobs=None, prompt_logprobs=None
    )


def close(left: Completion, right: Completion) -> bool:
    """Of logprobs: another batch is another order of additions."""
    for name in ("logprobs", "prompt_logprobs"):
        one, other = getattr(left, name), getattr(right, name)
        if (one is None) != (other is None) or len(one or ()) != len(other or ()):
            return False
        for a, b in zip(one or (), other or (), strict=True):
            if (a is None) != (b is None):
                return False
            if a and (a.token_id != b.token_id or abs(a.logprob - b.logprob) > 1e-3 or len(a.top) != len(b.top)):
                return False
    return True


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
            assert same(completion, right)
            mine = [p for p in pieces if (p.index, p.sample) == (completion.index, completion.sample)]
            assert tokens(mine) == right.token_ids
            assert "".join(piece.text for piece in mine) == right.text
            assert [piece.finish_reason for piece in mine] == [None] * (len(mine) - 1) + [right.finish_reason]
            assert mine[-1].completion
            assert same(mine[-1].completion, right)
            assert (mine[0].prompt_logprobs is None) == (right.prompt_logprobs is None)
            assert not any(piece.prompt_logprobs for piece in mine[1:])
            if right.logprobs is not None:
                assert [each.token_id for p in mine for each in p.logprobs or ()] == list(right.token_ids)
            assert all(piece.token_ids for piece in mine) or not right.token_ids

    asyncio.run(main())
    assert "stop" in [completion.finish_reason for completion in expected]
    assert llm.stats.preemptions > before


def test_times_are_of_the_callers_clock(llm: ProcessLLM) -> None:
    async def main() -> None:
        called = time.perf_counter()
        stream = llm.submit([1, 2], GREEDY, every_token=False)
        (done,) = await stream.completions()
        (row,) = stream.rows
        assert len(row.times) == 12
        assert called < row.asked < row.times[0] <= row.times[-1] < time.perf_counter()
        assert done.metrics.ttft_s == row.times[0] - row.asked

    asyncio.run(main())


def test_the_front_loads_no_torch(folder: Path) -> None:
    """Nor numpy; and a script needs no `if __name__ == "__main__"`."""
    code = f"""
import asyncio, sys
from nanoinfer import SamplingParams
from nanoinfer.serve.engine_process import ProcessLLM
llm = ProcessLLM({str(folder)!r}, device="cpu", max_batch=1)
params = SamplingParams(max_tokens=3, logprobs=1, prompt_logprobs=1, stop=["zzz"])
print(len(asyncio.run(llm.generate([1, 2], params))[0].logprobs))
print({{"torch", "numpy"}} & set(sys.modules))
print(llm.pid)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    first, second, pid = done.stdout.splitlines()
    assert (first, second, done.stderr) == ("3", "set()", "")
    until(lambda: gone(int(pid)))


@pytest.mark.parametrize("prompt", ["", [], [211], ["a", ""], None, [1] * 100, ([1], [GREEDY] * 2)])
def test_bad_prompts_are_refused_at_the_call(llm: ProcessLLM, folder: Path, prompt: Any) -> None:
    """In the words of an `LLM`."""
    prompts, params = prompt if isinstance(prompt, tuple) else (prompt, GREEDY)
    here, before = LLM(folder, **{**SETTINGS, "max_batch": 1}), llm.stats.requests

    async def main() -> None:
        if prompt == []:
            assert await llm.generate(prompt, params) == []
            return
        with pytest.raises(ValueError) as expected:
            here.generate(prompts, params)
        with pytest.raises(ValueError) as refused:
            llm.stream(prompts, params)
        assert str(refused.value) == str(expected.value)

    asyncio.run(main())
    assert llm.stats.requests == before
    with pytest.raises(RuntimeError, match="no running event loop"):
        llm.stream([1], GREEDY)


@pytest.mark.parametrize(
    "arguments",
    [
        {"engine": "no such engine"},
        {"no_such": 1},
        {"model": "random:no-such"},
        {"model": "random:tiny", "device": "cuda:77"},
        {"model": "random:tiny", "max_len": 5000},
    ],
)
def test_what_an_llm_refuses_it_refuses(arguments: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)) as expected:
        LLM(**arguments)
    with pytest.raises((ValueError, TypeError)) as refused:
        ProcessLLM(**arguments)
    assert str(refused.value).replace("ProcessLLM", "LLM") == str(expected.value)


def test_a_model_that_is_no_name_cannot_cross(small_model: GPT2, started: Processes) -> None:
    model: Any = small_model
    with pytest.raises(ValueError, match="model must be a name or a path for another process, not a GPT2"):
        ProcessLLM(model)
    assert not started


def test_it_is_an_async_llm_with_the_same_facts(llm: ProcessLLM, folder: Path) -> None:
    assert isinstance(llm, AsyncLLM)
    here = AsyncLLM(folder, **SETTINGS)
    assert llm.facts == here.facts
    assert (llm.facts.max_len, llm.facts.vocab_size, llm.facts.blocks) == (100, 211, 12)
    assert here.gauges == IDLE
    assert llm.gauges.blocks == 12
    here.close()


@pytest.mark.parametrize("place", ["not yet queued", "queued", "decoding", "ended"])
def test_cancelled_anywhere(llm: ProcessLLM, alone: LLM, place: str) -> None:
    """Once or twice: nothing is held, by either side, and the others get their tokens."""
    expected = alone.generate([3], GREEDY)[0].token_ids

    async def main() -> None:
        others = [llm.stream([number], LONG) for number in range(8)] if place == "queued" else []
        stream = llm.stream([5], GREEDY if place == "ended" else LONG)
        if place == "ended":
            await read(stream)
        if place == "decoding":
            await anext(stream)
        for each in (*others, stream, stream):
            await each.aclose()
        assert await read(stream) == []
        assert not llm._remote.loop._rows
        (done,) = await llm.generate([3], GREEDY)
        assert done.token_ids == expected
        await asyncio.to_thread(until, lambda: llm.gauges[:3] == (0, 0, 0))
        assert (stream.rows[0].finish_reason is None) == (place != "ended")

    asyncio.run(main())


def test_a_task_that_is_cancelled_takes_all_samples_along(llm: ProcessLLM) -> None:
    async def main() -> None:
        llm.pace(0.05)
        task = asyncio.create_task(llm.generate([5], replace(LONG, n=2)))
        await asyncio.to_thread(until, lambda: llm.gauges.running == 2)
        assert llm.gauges.blocks_used > 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        llm.pace(0)
        await asyncio.to_thread(until, lambda: llm.gauges[:3] == (0, 0, 0))

    asyncio.run(main())


def test_a_stream_that_everybody_has_dropped_is_cancelled(llm: ProcessLLM) -> None:
    async def main() -> None:
        stream = llm.stream([5], LONG)
        await anext(stream)
        del stream
        gc.collect()
        assert not llm._remote.loop._rows

    asyncio.run(main())


def test_each_client_gets_its_own_answer(llm: ProcessLLM, alone: LLM) -> None:
    """64 at once, whose prompts name their number; every third one leaves early, and another comes in its place."""
    prompts = [[7, number, number + 1] for number in range(64)]
    expected = [completion.token_ids for completion in alone.generate(prompts, GREEDY)]

    async def client(number: int) -> None:
        async with llm.stream(prompts[number], GREEDY) as stream:
            if number % 3 == 0:
                await anext(stream)
        if number % 2:
            (done,) = await llm.generate(prompts[number], GREEDY)
            assert (done.prompt_token_ids, done.token_ids) == (tuple(prompts[number]), expected[number])
        else:
            assert tokens(await read(llm.stream(prompts[number], GREEDY))) == expected[number]

    async def main() -> None:
        await asyncio.gather(*map(client, range(64)))

    asyncio.run(main())


def test_a_slow_reader_slows_nobody_and_is_bounded(llm: ProcessLLM, alone: LLM) -> None:
    """Two samples that wait to be read are two items, however long they are; joined pieces are the same text."""
    params = SamplingParams(max_tokens=60, seed=4, n=2, ignore_eos=True)
    expected = alone.generate([5, 6], params)

    async def main() -> None:
        slow = llm.stream([5, 6], params)
        first = await anext(slow)
        fast = await asyncio.gather(*(llm.generate([number], GREEDY) for number in range(8)))
        assert [len(done.token_ids) for (done,) in fast] == [12] * 8
        await asyncio.to_thread(until, lambda: not llm._remote.loop._rows)  # all has come, though nobody has read
        await asyncio.sleep(0)
        assert len(slow._inbox.news) == 2
        pieces = [first, *await read(slow)]
        assert len(pieces) <= 4
        for sample, completion in enumerate(expected):
            mine = [piece for piece in pieces if piece.sample == sample]
            assert tokens(mine) == completion.token_ids
            assert "".join(piece.text for piece in mine) == completion.text

    asyncio.run(main())


def test_event_loops_come_and_go(llm: ProcessLLM, alone: LLM) -> None:
    expected = alone.generate([2], GREEDY)[0].token_ids
    for _ in range(3):
        assert asyncio.run(llm.generate([2], GREEDY))[0].token_ids == expected
        assert len(llm._outlets) == len(llm._remote.loop._mailboxes) == 1


def test_signals_of_the_terminal_do_not_end_it(llm: ProcessLLM) -> None:
    """Ctrl-C comes to both processes, and the front says when it is over."""

    async def main() -> None:
        stream = llm.stream([5], LONG)
        await anext(stream)
        os.kill(llm.pid, signal.SIGINT)
        os.kill(llm.pid, signal.SIGTERM)
        await read(stream)
        assert stream.rows[0].finish_reason == "length"

    asyncio.run(main())


def test_it_can_be_watched(llm: ProcessLLM) -> None:
    """Events come as long as somebody watches: of each step one, in order."""
    seen: list[dict[str, Any]] = []

    async def main() -> None:
        llm.watch(seen.append)
        await llm.generate([5], GREEDY)
        await asyncio.to_thread(until, lambda: len(seen) >= 12 or not event_loop_waits(seen))
        llm.watch(None)
        count = len(seen)
        await llm.generate([5], GREEDY)
        assert len(seen) == count
        again: list[dict[str, Any]] = []
        llm.watch(again.append, texts=True)
        await llm.generate([5], GREEDY)
        await asyncio.sleep(0.01)
        assert again
        llm.watch(None)
        await llm.generate([5], GREEDY)  # it is no longer observed then

    def event_loop_waits(_: object) -> bool:
        return True

    asyncio.run(main())
    assert [event["step"] for event in seen] == list(range(len(seen)))
    assert len(seen) >= 12


def test_it_can_be_slowed(llm: ProcessLLM) -> None:
    """And told to hurry in the middle of a step that would take a minute."""

    async def main() -> None:
        llm.pace(60)
        stream = llm.stream([5], GREEDY)
        await anext(stream)
        await asyncio.sleep(0.05)
        assert len(stream.rows[0].token_ids) == 1
        llm.pace(0)
        await asyncio.wait_for(read(stream), PATIENCE / 2)
        with pytest.raises(ValueError, match="seconds_per_step must be a number from 0 to 60, not -1"):
            llm.pace(-1)

    asyncio.run(main())


def test_a_failed_step_ends_every_call_with_its_cause(
    folder: Path, monkeypatch: pytest.MonkeyPatch, started: Processes
) -> None:
    """What had been computed is handed out first; the traceback of the other process is in the cause."""
    llm = broken(monkeypatch, folder)

    async def main() -> None:
        assert llm.alive
        unread = llm.stream([5], LONG)
        await asyncio.to_thread(until, lambda: len(unread.rows[0].token_ids) >= 3)
        waiting = asyncio.gather(llm.generate([1], LONG), read(llm.stream([2], LONG)), return_exceptions=True)
        with pytest.raises(EngineDied, match=r"a step failed: Boom\('of the GPU'\)") as failed:
            await llm.generate([FATAL], GREEDY)
        assert "in failing" in str(failed.value.__cause__)
        assert [type(end) for end in await waiting] == [EngineDied] * 2
        count = len(unread.rows[0].token_ids)
        first = await anext(unread)
        assert first.token_ids == tuple(unread.rows[0].token_ids)
        assert len(first.token_ids) == count >= 3
        with pytest.raises(EngineDied, match="Boom"):
            await anext(unread)
        assert await read(unread) == []
        assert not llm.alive
        assert (await asyncio.wrap_future(llm.died)) is failed.value
        with pytest.raises(RuntimeError, match=r"the engine has died: .*Boom"):
            llm.stream([1], GREEDY)
        with pytest.raises(RuntimeError, match="Boom"):
            await llm.warm_up()
        assert llm.gauges == Gauges()
        llm.close()
        with pytest.raises(RuntimeError, match="this LLM is closed"):
            llm.stream([1], GREEDY)

    asyncio.run(main())


def test_a_killed_engine_ends_every_call(folder: Path) -> None:
    llm = ProcessLLM(folder, **SETTINGS)

    async def main() -> None:
        streams = [llm.stream([number], LONG) for number in range(20)]
        calls = [asyncio.create_task(read(stream)) for stream in streams[:10]]
        calls += [asyncio.create_task(stream.completions()) for stream in streams[10:]]
        calls.append(asyncio.create_task(llm.warm_up()))
        await asyncio.to_thread(until, lambda: len(streams[0].rows[0].token_ids) > 2)
        os.kill(llm.pid, signal.SIGKILL)
        ends = await asyncio.gather(*calls, return_exceptions=True)
        died = [end for end in ends if isinstance(end, EngineDied)]
        assert {str(end) for end in died} == {"the engine's process has ended: killed by SIGKILL"}
        assert len(died) >= 14
        assert not llm.alive
        assert isinstance(await asyncio.wrap_future(llm.died), EngineDied)
        with pytest.raises(RuntimeError, match=r"the engine has died: .*SIGKILL"):
            llm.stream([1], GREEDY)

    asyncio.run(main())
    llm.close()


@pytest.mark.parametrize(
    "code, told",
    [("import os; os._exit(3)", "exit code 3"), ("raise SystemExit(4)", "exit code 4"), ("1 / 0", "exit code 1")],
)
def test_an_engine_that_ends_before_it_is_ready(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    spawn = engine_process.spawn
    monkeypatch.setattr(engine_process, "spawn", lambda: spawn(first=code))
    with pytest.raises(RuntimeError, match=f"the engine's process has ended: {told}"):
        ProcessLLM(folder, **SETTINGS)


def test_an_engine_ends_with_its_front(folder: Path) -> None:
    """Though that was killed in the middle of a stream."""
    code = f"""
import asyncio
from nanoinfer import SamplingParams
from nanoinfer.serve.engine_process import ProcessLLM
async def main():
    llm = ProcessLLM({str(folder)!r}, device="cpu", engine="paged", threads=1, max_batch=2)
    params = SamplingParams(max_tokens=90, ignore_eos=True)
    stream = llm.stream([[1]] * 50, params)
    await anext(stream)
    print(llm.pid, flush=True)
    while True:
        await llm.generate([1], params)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as front:
        assert front.stdout
        pid = int(front.stdout.readline())
        assert not gone(pid)
        front.kill()
        until(lambda: gone(pid))


def test_closing_ends_what_is_open(folder: Path) -> None:
    llm = ProcessLLM(folder, **SETTINGS)

    async def main() -> None:
        async with llm:
            streams = [llm.stream([number], LONG) for number in range(4)]
            reading = [asyncio.create_task(read(stream)) for stream in streams[1:]]
            await anext(streams[0])
            await asyncio.to_thread(llm.close)
            ends = await asyncio.gather(*reading, return_exceptions=True)
            assert [repr(end) for end in ends] == ["RuntimeError('this LLM is closed')"] * 3
        assert gone(llm.pid)
        assert not llm.alive
        assert not llm.died.done()
        for call in (lambda: llm.stream([1], GREEDY), lambda: llm._remote.warm_up(None)):
            with pytest.raises(RuntimeError, match="this LLM is closed"):
                call()

    asyncio.run(main())
    assert llm.gauges == Gauges()


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_closing_ends_an_engine_that_stands_still(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoinfer.serve.engine_remote.PATIENCE", 0.1)
    llm = ProcessLLM(folder, **SETTINGS)
    process = llm._remote.loop.process
    os.kill(process.pid, signal.SIGSTOP)
    llm.close()
    assert process.returncode == -signal.SIGKILL


def test_a_request_that_can_never_fit_is_refused_at_the_call(folder: Path) -> None:
    """As an `LLM` does, and the next one runs."""
    settings = {**SETTINGS, "kv_blocks": 6}

    async def main() -> None:
        async with ProcessLLM(folder, **settings) as llm:
            with pytest.raises(ValueError) as refused:
                llm.stream([1] * 70, LONG)
            assert len((await llm.generate([2], GREEDY))[0].token_ids) == 12
        with LLM(folder, **settings) as here, pytest.raises(ValueError) as expected:
            here.generate([1] * 70, LONG)
        assert str(refused.value) == str(expected.value)

    asyncio.run(main())


def test_one_that_is_dropped_ends(folder: Path, started: Processes) -> None:
    llm = ProcessLLM(folder, **SETTINGS)
    assert asyncio.run(llm.generate([1], GREEDY))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del llm
        gc.collect()
    assert [process.poll() for process in started] == [0]


def test_a_warm_up_tells_how_far_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who waits for it does not keep a request from running."""
    code = """
warm_up = lambda self, on_capture: [on_capture(done, 3) for done in (1, 2, 3)]
LLM.warm_up = warm_up
"""
    llm, seen = broken(monkeypatch, folder, code), list[tuple[int, int]]()

    def fails(done: int, count: int) -> None:
        raise KeyError("of the caller")

    async def main() -> None:
        async with llm:
            await llm.warm_up(lambda *done: seen.append(done))
            assert seen == [(1, 3), (2, 3), (3, 3)]
            with pytest.raises(KeyError, match="of the caller"):
                await llm.warm_up(fails)
            await llm.warm_up()
            assert llm.alive

    asyncio.run(main())


def test_what_the_engine_prints_does_not_harm(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    llm = broken(monkeypatch, folder, "warm_up = LLM.warm_up\nLLM.warm_up = lambda *a: [print('hello'), warm_up(*a)]\n")
    asyncio.run(llm.warm_up())
    assert len(asyncio.run(llm.generate([1], GREEDY))[0].token_ids) == 12
    llm.close()
    assert "hello" in capfd.readouterr().err


class TestNews:
    """What is told of rows, without a process."""

    @pytest.fixture
    def server(self) -> EngineServer:
        read, write = os.pipe()
        os.close(read)
        return EngineServer(io.BytesIO(), os.fdopen(write, "wb"))

    def row(self, server: EngineServer, number: int, every_token: bool = True, **params: Any) -> Row:
        request = Request(0, (1, 2), SamplingParams(**params), 0, 5, frozenset())
        row = Row(request, 0.0, None, every_token)
        server._rows[number], server._told[row] = row, [number, 0]
        return row

    def add(self, row: Row, *ids: int) -> None:
        for token in ids:
            row.token_ids.append(token)
            row.times.append(float(token))

    def test_of_a_row_that_went_on_meanwhile(self, server: EngineServer) -> None:
        """Only what was posted is told, so that its end comes with its last token."""
        row, news = self.row(server, 7), [News(), News(), News()]
        self.add(row, 11, 12, 13)
        row.finish_reason, row.ended = "length", True
        server._fill(news[0], Counter([row]))
        server._fill(news[1], Counter([row, row]))
        server._fill(news[2], Counter([row]))  # of nobody
        assert [tuple(map(list, (n.numbers, n.counts, n.tokens, n.times))) for n in news] == [
            ([7], [1], [11], [11.0]), ([7], [2], [12, 13], [12.0, 13.0]), ([], [], [], [])
        ]  # fmt: skip
        assert [n.extras for n in news] == [[], [(7, "length", True, [], [], [])], []]
        assert not server._rows
        assert not server._told

    def test_of_a_cancelled_row(self, server: EngineServer) -> None:
        row, news = self.row(server, 7), News()
        self.add(row, 11)
        row.cancelled, row.ended = RuntimeError(), True
        server._fill(news, Counter([row, row]))
        assert (*map(list, (news.counts, news.tokens)), news.extras) == ([1], [11], [(7, None, True, [], [], [])])
        assert not server._rows

    def test_of_a_row_that_is_heard_of_at_its_end(self, server: EngineServer) -> None:
        row, news = self.row(server, 7, every_token=False), News()
        self.add(row, 11, 12, 13)
        row.finish_reason, row.ended = "stop", True
        server._fill(news, Counter([row]))
        assert (list(news.counts), list(news.tokens)) == ([3], [11, 12, 13])
        assert news.extras == [(7, "stop", True, [], [], [])]


class TestLink:
    def test_what_waits_is_one_message(self) -> None:
        read, write = os.pipe()
        packed: list[list[Any]] = []

        def pack(sent: list[Any]) -> list[Any]:
            packed.append(sent)
            return sent

        link = Link(io.BytesIO(), os.fdopen(write, "wb"), print, pack)
        reader = Link(os.fdopen(read, "rb"), io.BytesIO(), print)
        big = b"x" * 10**6  # more than a pipe holds
        for number in range(3000):
            link.send((number, big if number == 0 else b""))
        link.close()
        got = []
        while len(got) < 3000:
            got += reader.receive()
        with pytest.raises(EOFError):
            reader.receive()
        assert [number for number, _ in got] == list(range(3000))
        assert len(packed) < 1500  # nearly all waited for the first
        reader.close()

    @pytest.mark.parametrize("data", [b"", b"123", SIZE.pack(5) + b"1234"])
    def test_a_message_that_is_cut_is_an_end(self, data: bytes) -> None:
        link = Link(io.BytesIO(data), io.BytesIO(), print)
        with pytest.raises(EOFError):
            link.receive()
        link.close()


def test_numbers_are_never_used_again_and_a_cancel_is_of_one_row() -> None:
    """News of a row that was cancelled here, and was not yet there, are news of nobody."""
    code = "import sys; sys.stdin.buffer.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    loop, posted = RemoteLoop(process), list[Row]()
    mailbox = Mailbox(posted.extend)
    request = Request(0, (1, 2), GREEDY, 0, 12, frozenset())
    (first,) = loop.submit([request], mailbox, 0.0, True)
    loop.cancel([first])
    (second,) = loop.submit([request], mailbox, 0.0, True)
    assert first.arrived != second.arrived
    numbers = array("Q", [first.arrived, second.arrived])
    news = News(numbers, array("I", [1, 1]), array("I", [3, 4]), array("d", [0.1, 0.2]))
    loop._take(replace(news, extras=[(first.arrived, "length", True, [], [], [])]))
    assert (first.token_ids, second.token_ids, posted) == ([], [4], [second])
    loop.cancel([first])
    loop._take(replace(news, extras=[(second.arrived, "length", True, [], [], [])]))
    loop.cancel([second])
    assert (second.token_ids, second.finish_reason, second.cancelled) == ([4, 4], "length", None)
    loop._take(news)
    assert posted == [second, second]
    loop.close()
    assert process.returncode == 0
