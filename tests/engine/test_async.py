"""The engine behind asyncio: who gets which tokens, who may leave when, and who hears of an end."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
import torch

from nanoinfer import LLM, AsyncLLM, Completion, Piece, SamplingParams
from nanoinfer.async_llm import TokenStream
from nanoinfer.model.gpt2 import GPT2
from tests.conftest import prompts_of
from tests.engine.fake_graphed import Gate, idle, nothing_is_held

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
MIXED = [
    SamplingParams(temperature=0, max_tokens=9, seed=1),
    SamplingParams(temperature=0.8, max_tokens=17, seed=5),
    SamplingParams(temperature=1.2, top_k=20, max_tokens=3, seed=6),
    SamplingParams(max_tokens=14, seed=2**40),
    SamplingParams(temperature=0, max_tokens=1, seed=3),
]
Make = Callable[..., AsyncLLM]


def in_an_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.fixture
def make(small_model: GPT2) -> Make:
    return lambda **settings: AsyncLLM(small_model, threads=1, **{"engine": "paged", "max_batch": 3, **settings})


@pytest.fixture
def llm(make: Make) -> AsyncLLM:
    return make()


@pytest.fixture
def alone(small_model: GPT2) -> LLM:
    """Where a prompt runs alone."""
    return LLM(small_model, engine="dense", threads=1, max_batch=1)


async def steps(gate: Gate, count: int) -> None:
    """Wait until so many more are over, while the event loop goes on."""
    for _ in range(count):
        await asyncio.to_thread(gate.step)


async def no_reader_is_left(llm: AsyncLLM) -> None:
    """Once what was posted last has been looked at."""
    nothing_is_held(llm.llm)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not [row for outlet in llm._outlets.values() for row in (*outlet.inboxes, *outlet._news)]
    assert [mailbox.news for mailbox in llm.llm.loop._mailboxes] in ([], [[]])


async def read(stream: TokenStream) -> list[Piece]:
    return [piece async for piece in stream]


def tokens(pieces: list[Piece]) -> tuple[int, ...]:
    return tuple(token for piece in pieces for token in piece.token_ids)


def same(left: Completion, right: Completion) -> bool:
    return replace(left, metrics=right.metrics) == right


def test_it_is_the_llm_s_engine(llm: AsyncLLM, alone: LLM) -> None:
    """Tokens, texts, seeds and order: awaited, streamed, and from the `LLM` itself. Samples have their own ends."""
    prompts = prompts_of([4, 1, 9, 2, 30])
    params = list(MIXED)
    params[2] = replace(MIXED[2], n=3, max_tokens=20, stop_token_ids=range(0, 211, 9), ignore_eos=True)
    params[3] = replace(MIXED[3], stop=alone.generate(prompts[3], MIXED[3])[0].text[4:6])
    expected = alone.generate(prompts, params)

    async def main() -> None:
        async with llm:
            done, pieces = await asyncio.gather(llm.generate(prompts, params), read(llm.stream(prompts, params)))
            await no_reader_is_left(llm)
        assert all(map(same, done, expected))
        for completion in done:
            which = completion.index, completion.sample
            mine = [piece for piece in pieces if (piece.index, piece.sample) == which]
            assert tokens(mine) == completion.token_ids
            assert "".join(piece.text for piece in mine) == completion.text
            assert [piece.finish_reason for piece in mine] == [None] * (len(mine) - 1) + [completion.finish_reason]
            assert mine[-1].completion
            assert same(mine[-1].completion, completion)

    asyncio.run(main())
    assert len({len(completion.token_ids) for completion in expected[2:5]}) > 1
    assert expected[5].finish_reason == "stop"


PLACES = {  # steps of the engine before a row leaves, with prompts in chunks of 5, and how many tokens it may have
    "not yet queued": (0, {0}),
    "queued": (1, {0}),
    "in a chunk": (2, {0}),
    "decoding": (10, range(1, 12)),
    "in the step that ends it": (10, {12}),
}


@pytest.mark.parametrize("engine, lag", [("paged", 0), ("paged-graph", 2)])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("place", PLACES)
@in_an_event_loop
async def test_cancelled_anywhere(make: Make, alone: LLM, place: str, streams: bool, engine: str, lag: int) -> None:
    """Nothing is held afterwards, the other client gets its tokens, and leaving once more is harmless."""
    leaver, other = prompts_of([20, 5])
    llm = make(engine=engine, prefill_chunk=5, max_batch=1 if place == "queued" else 2)
    core: Any = llm.llm.core
    core.lag = lag
    gate, held = Gate(llm.llm), []

    async def leave() -> None:
        if streams:
            held.append(llm.stream(leaver, GREEDY))
            await read(held[0])
        else:
            await llm.generate(leaver, GREEDY)

    staying = asyncio.create_task(llm.generate(other, GREEDY))
    await asyncio.sleep(0)  # it comes first
    leaving = asyncio.create_task(leave())
    if place != "not yet queued":
        await asyncio.sleep(0)
    await steps(gate, PLACES[place][0])
    if place == "in the step that ends it":
        while llm.stats.new_tokens < 24:
            gate.step()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    gate.open()
    (done,) = await staying
    leaving.cancel()
    assert same(done, alone.generate(other, GREEDY)[0])
    await no_reader_is_left(llm)
    got = llm.stats.new_tokens - 12
    assert got in PLACES[place][1]
    assert llm.stats.dropped_tokens <= lag
    assert llm.stats.requests == (1 if got == 0 and place != "in a chunk" else 2)


@in_an_event_loop
async def test_a_stream_may_be_closed_at_any_time(llm: AsyncLLM) -> None:
    """While somebody waits for a piece, once more, and before anything was read."""
    gate, streams = Gate(llm.llm), [llm.stream([number], GREEDY) for number in range(2)]
    await steps(gate, 1)
    await anext(streams[0])
    waiting = asyncio.create_task(read(streams[0]))
    await asyncio.sleep(0)
    for stream in (*streams, *streams):
        await stream.aclose()
    gate.open()
    assert [await waiting, *[await read(stream) for stream in streams]] == [[]] * 3
    await no_reader_is_left(llm)
    assert llm.stats.new_tokens == 2


@in_an_event_loop
async def test_a_stream_that_everybody_has_dropped_is_cancelled(llm: AsyncLLM) -> None:
    """And one that a task waits for is not, though nobody holds the task."""
    gate, done = Gate(llm.llm), []

    async def unheld() -> None:
        done.append(tokens(await read(llm.stream([1], GREEDY))))

    asyncio.get_running_loop().call_soon(asyncio.ensure_future, unheld())
    stream = llm.stream([2], GREEDY)
    await steps(gate, 2)
    await anext(stream)
    del stream
    gc.collect()
    gate.open()
    while not done:
        await asyncio.sleep(0)
    await no_reader_is_left(llm)
    assert len(done[0]) == 12
    assert llm.stats.new_tokens == 14


@in_an_event_loop
async def test_a_slow_reader_slows_nobody_and_is_bounded(llm: AsyncLLM, alone: LLM) -> None:
    """Two samples that wait to be read are two items, however long they are; joined pieces are the same text."""
    params = SamplingParams(max_tokens=60, seed=4, n=2, ignore_eos=True)
    expected = alone.generate([5, 6], params)

    slow = llm.stream([5, 6], params)
    first = await anext(slow)
    fast = await asyncio.gather(*(llm.generate([number], GREEDY) for number in range(8)))
    assert [len(done.token_ids) for (done,) in fast] == [12] * 8
    await asyncio.to_thread(idle, llm.llm)  # the engine is done, though nobody has read
    assert llm.stats.new_tokens == 8 * 12 + 2 * 60
    assert len(slow._inbox.news) == 2
    pieces = await read(slow)
    assert [piece.sample for piece in pieces] == [1 - first.sample, first.sample]  # the oldest news come first
    for sample, completion in enumerate(expected):
        mine = [piece for piece in (first, *pieces) if piece.sample == sample]
        assert tokens(mine) == completion.token_ids
        assert "".join(piece.text for piece in mine) == completion.text


@in_an_event_loop
async def test_a_row_that_is_heard_of_at_its_end_is_one_piece(llm: AsyncLLM) -> None:
    pieces = await asyncio.wait_for(read(llm.submit([[1], [2]], GREEDY, every_token=False)), 30)
    assert [piece.completion and piece.completion.token_ids for piece in pieces] == [each.token_ids for each in pieces]
    assert [len(piece.token_ids) for piece in pieces] == [12, 12]


@in_an_event_loop
async def test_a_step_s_news_are_one_call_into_the_event_loop(llm: AsyncLLM) -> None:
    """For all of its streams: an event loop that is held up is called once, however many steps go by."""
    event_loop: Any = asyncio.get_running_loop()
    calls, call = Counter[str](), event_loop.call_soon_threadsafe

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[args[0].__name__] += 1
        return call(*args, **kwargs)

    event_loop.call_soon_threadsafe = counted
    streams = [llm.stream([number], GREEDY) for number in range(3)]
    idle(llm.llm)  # and the event loop stands still
    assert calls == {"_hand_out": 1}
    assert [len(each) for each in await asyncio.gather(*map(read, streams))] == [1] * 3


class Boom(Exception):
    pass


@pytest.mark.parametrize("tidies", [True, False])
@in_an_event_loop
async def test_a_loop_that_dies_ends_every_call_with_its_cause(
    make: Make, monkeypatch: pytest.MonkeyPatch, tidies: bool
) -> None:
    """Read or not, in the batch or waiting; each once. Even where the engine cannot be tidied up after it."""
    llm, forward, calls = make(max_batch=2), GPT2.forward, iter(range(100))
    gate, abandon = Gate(llm.llm), llm.llm.core.abandon

    def failing(self: GPT2, *args: Any) -> torch.Tensor:
        if next(calls) == 4:
            raise Boom("of the GPU")
        return forward(self, *args)

    monkeypatch.setattr(GPT2, "forward", failing)
    if not tidies:
        monkeypatch.setattr(llm.llm.core, "abandon", lambda cause: [abandon(cause), 1 / 0])

    assert llm.alive
    unread, streams = llm.stream([1], GREEDY), [llm.stream([number], GREEDY) for number in (2, 3)]
    waiting = asyncio.gather(
        *map(read, streams), llm.generate([4], GREEDY), llm.generate([[5], [6]], GREEDY), return_exceptions=True
    )
    await asyncio.sleep(0)
    gate.open()
    ends = await waiting
    assert [repr(end) for end in ends] == ["Boom('of the GPU')"] * 4
    with pytest.raises(Boom):
        await read(unread)
    for stream in (unread, *streams):
        assert await read(stream) == []
    assert not llm.alive
    with pytest.raises(RuntimeError, match=r"engine has died: Boom\('of the GPU'\)"):
        llm.stream([1], GREEDY)
    await no_reader_is_left(llm)
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.stream([1], GREEDY)


@in_an_event_loop
async def test_closing_ends_what_is_open(llm: AsyncLLM) -> None:
    gate = Gate(llm.llm)

    async with llm as same:
        assert same is llm
        streams = [llm.stream([number], GREEDY) for number in range(4)]
        reading = [asyncio.create_task(read(stream)) for stream in streams[1:]]
        await steps(gate, 2)
        stopping = llm.llm.loop.worker.stopping
        stopping.set = lambda set=stopping.set: [set(), gate.open()]  # steps go on once the LLM is closing
        llm.close()
        ends = await asyncio.gather(*reading, return_exceptions=True)
        assert [repr(end) for end in ends] == ["RuntimeError('this LLM is closed')"] * 3
        with pytest.raises(RuntimeError, match="this LLM is closed"):
            await read(streams[0])
        await streams[0].aclose()
    assert not llm.alive
    with pytest.raises(RuntimeError, match="this LLM is closed"):
        llm.stream([1], GREEDY)


@pytest.mark.parametrize("unread", [False, True])
def test_an_event_loop_that_is_gone_takes_its_rows_along(llm: AsyncLLM, unread: bool) -> None:
    """With the next step, also where it was called before it went, and never looked."""
    gate, event_loop = Gate(llm.llm), asyncio.new_event_loop()

    async def leaves() -> TokenStream:
        stream = llm.stream([1], replace(GREEDY, max_tokens=90))
        await steps(gate, 2)
        return stream

    kept = event_loop.run_until_complete(leaves())
    event_loop.run_until_complete(event_loop.shutdown_default_executor())
    if unread:
        gate.step()
        while not llm._outlets[event_loop]._called:
            pass
    event_loop.close()
    gate.open()
    nothing_is_held(llm.llm)
    assert llm.stats.new_tokens <= 5
    assert not llm.llm.loop._mailboxes
    kept._cancel()


def test_pages_are_shared_where_nothing_else_is_said(small_model: GPT2) -> None:
    for kind, settings, expected in (
        (LLM, {}, (False, False)),
        (AsyncLLM, {}, (True, True)),
        (AsyncLLM, {"preemption": False}, (True, False)),
        (AsyncLLM, {"engine": "dense"}, (False, False)),
    ):
        made = kind(small_model, **{"engine": "paged", "max_batch": 2, **settings})
        core: Any = getattr(made, "llm", made).core
        shares = core.blocks is not None and core.blocks.identity is not None
        assert (shares, getattr(core.cache, "preemption", False)) == expected
        made.close()
