"""`bench load`: clocks that start when a request is due, and counts that add up, on an event loop whose time jumps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nanobench.load.clients import Done
from nanobench.load.drive import Answer, Ask, Reply, drive
from nanobench.load.measure import Rate, Schedule, runs, summary, table
from nanobench.load.records import Limits, LoadRun, Plan, counted
from nanobench.load.requests import Mix, Source, poisson

MIX = Mix(requests=40, prompt=(2, 9), new=(1, 5), vocab=100)
EIGHT = [0.1 * n for n in range(8)]
OPEN, CLOSED = Plan(how="arrivals", requests=8, per_second=10), Plan(how="closed loop", requests=8, concurrency=1)
Send = Callable[[Ask], Awaitable[Reply]]


class Time(selectors.DefaultSelector):
    """The clock of an event loop that waits for nothing: the time that it would wait has passed at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everything waits, and nothing is to come"
        self.now += max(0.0, timeout)
        return super().select(0)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        loop = asyncio.SelectorEventLoop(self)
        loop.time = lambda: self.now  # type: ignore[method-assign]
        try:
            return loop.run_until_complete(coroutine)
        finally:
            loop.close()

    def load(self, due: Sequence[float], send: Send, plan: Plan, start: float = 0.0) -> LoadRun:
        """What is counted of requests that are due at these times."""
        sent = self.run(drive(asks(due), send, start, plan.concurrency))
        answers = tuple(each.answer(each.result, start) for each in sent)
        return counted("fake", plan, asks(due), [Done(answers, 0.5)], Limits(ttft_s=1.0, itl_s=0.1))


@pytest.fixture
def time() -> Time:
    return Time()


def asks(due: Sequence[float]) -> list[Ask]:
    return [Ask(number, then, (1, 2), 1) for number, then in enumerate(due)]


def answered(*times: float, tokens: int = 0) -> Reply:
    return Reply("ok", "", tokens or len(times), times, times[-1])


def one_at_a_time(seconds: float) -> Send:
    """A server that answers a request in so many seconds, and has room for one."""
    room = asyncio.Lock()

    async def send(ask: Ask) -> Reply:
        async with room:
            await asyncio.sleep(seconds)
            return answered(asyncio.get_running_loop().time())

    return send


def test_waiting_for_the_server_is_counted_by_arrivals_and_not_by_a_closed_loop() -> None:
    """Eight arrivals at 10/s, where each takes half a second and the server has room for one."""
    run, closed = (Time().load(EIGHT, one_at_a_time(0.5), plan) for plan in (OPEN, CLOSED))
    assert run.ttft.p50 == pytest.approx((1.7 + 2.1) / 2)  # the n-th waits for n others, less 0.1 n
    assert run.ttft.longest == pytest.approx(8 * 0.5 - 0.7)
    assert closed.ttft.longest == pytest.approx(0.5)
    assert closed.late is None
    assert "closed loop" in str(closed)


def test_the_clock_starts_when_a_request_is_due_and_not_when_it_is_sent(time: Time) -> None:
    """The third send stalls for 500 ms, and with it the generator: those that are due meanwhile are sent late."""

    async def send(ask: Ask) -> Reply:
        if ask.number == 2:
            time.now += 0.5
        return answered(time.now + 0.01)

    run = time.load(EIGHT, send, OPEN)
    assert run.ttft.count == 8
    assert run.ttft.longest == pytest.approx(0.51)
    late = sorted((0.5, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0))
    assert run.ttft.p50 == pytest.approx(0.01 + (late[3] + late[4]) / 2)
    assert run.late.longest == pytest.approx(0.4)  # the one that stalled was itself sent in time
    assert run.off
    assert str(run).endswith("off True")


def test_a_run_whose_sends_are_in_time_is_not_marked(time: Time) -> None:
    run = time.load([5.0, 6.0, 8.0, 8.0], one_at_a_time(0.1), OPEN, start=3.0)
    assert not run.off
    assert run.sent_per_s == pytest.approx(run.asked_per_s)
    assert run.seconds == pytest.approx(8.2)


@pytest.mark.parametrize("concurrency", [None, 2], ids=["open", "closed"])
def test_an_interrupted_run_counts_what_was_under_way(time: Time, concurrency: int | None) -> None:
    async def send(ask: Ask) -> Reply:
        await asyncio.sleep(0.15 if ask.number == 0 else 9)
        return answered(time.now)

    async def main() -> Any:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.25, stop.set)
        return await drive(asks(EIGHT), send, 0.0, concurrency, stop)

    sent = time.run(main())
    assert [each.ask.number for each in sent] == [0, 1, 2]  # the others were never sent
    assert [each.result is None for each in sent] == [False, True, True]


def test_an_error_of_the_generator_is_raised(time: Time) -> None:
    async def send(ask: Ask) -> Reply:
        raise KeyError("of the generator")

    with pytest.raises(KeyError, match="of the generator"):
        time.run(drive(asks(EIGHT), send, 0.0))


def answer(number: int, reply: Reply) -> Answer:
    """Of a request that is due half a second after the run's start, which is at 100 s."""
    return Answer(number, 0.5, 0.5, reply.end or 9.0, reply, 100.0)


def test_a_piece_is_not_a_token() -> None:
    found = answer(0, answered(101.0, 101.3, 101.9, tokens=9))
    assert sorted(found.gaps_s) == pytest.approx([0.0] * 6 + [0.3, 0.6])
    assert found.mean_gap_s == pytest.approx(0.9 / 8)


def test_all_of_the_books_balance() -> None:
    replies = [
        answered(100.9, 101.0, tokens=2), answered(102.0, 102.05, tokens=2), answered(100.6, 101.6, tokens=2),
        answered(100.7, tokens=1), Reply("refused", "HTTP 429"), Reply("refused", "HTTP 429"),
        Reply("failed", "cut", 1, (100.6,)), Reply("cancelled", "interrupted"),
    ]  # fmt: skip
    answers = [answer(number, reply) for number, reply in enumerate(replies)]
    many = [Ask(n, 0.5, (1, 2, 3), 2) for n in range(8)]
    done = [Done(tuple(answers[::2]), 0.25), Done(tuple(answers[1::2]), 0.75, interrupted=True)]
    run = counted("t", Plan(how="at once", requests=8), many, done, Limits(ttft_s=1.0, itl_s=0.5))
    assert run.reasons == {"refused: HTTP 429": 2, "failed: cut": 1, "cancelled: interrupted": 1}
    assert (run.prompt_tokens, run.new_tokens, run.pieces, run.short) == (12, 7, 7, 1)
    assert run.good == 2  # one is late with its first token, one with its second
    assert (run.ttft.count, run.itl.count) == (4, 3)
    assert run.interrupted
    assert run.client_cpu == (0.25, 0.75)
    assert "interrupted True, seconds 102 s, attempted 8, ok 4, refused 2, failed 1, cancelled 1" in str(run)


class FakeTarget:
    """Answers so many requests a second, whatever is asked; notes what it was asked."""

    def __init__(self, name: str, per_second: float) -> None:
        self.name, self.per_second = name, per_second
        self.asked: list[Any] = []

    def run(self, asks: Sequence[Ask], concurrency: int | None) -> list[Done]:
        self.asked.append(list(asks))
        answers = []
        for ask in asks:
            end = max(ask.due, (ask.number + 1) / self.per_second)
            answers.append(Answer(ask.number, ask.due, ask.due, end, answered(end), 0.0))
        return [Done(tuple(answers), 0.1)]


def test_every_target_meets_the_same_requests_at_shares_of_the_firsts_rate() -> None:
    first, second = FakeTarget("a", 40), FakeTarget("b", 10)
    opened: Any = [lambda: nullcontext(first), lambda: nullcontext(second)]
    schedule = Schedule((Rate.of("50%"), Rate.of("20")), repeats=2)
    found = list(runs(opened, Source.of(MIX, None), schedule, Limits(), lambda line: None))
    assert first.asked == second.asked
    assert [run.plan.per_second for run in found] == [None, None, pytest.approx(20), 20.0] * 2
    warm, once, again, *_ = first.asked
    assert (len(warm), len(once)) == (1, 40)
    assert warm[0].prompt not in [ask.prompt for ask in once]
    assert [len(ask.prompt) for ask in once] == [len(ask.prompt) for ask in again]
    assert [ask.prompt for ask in once] != [ask.prompt for ask in again]  # or a prefix cache would know them
    assert "(25% of a)" in list(summary(found))[4]


def test_arrivals_keep_their_pattern_at_every_rate() -> None:
    slow, fast = poisson(10, 1000, 7), poisson(40, 1000, 7)
    assert slow == pytest.approx([4 * due for due in fast])
    assert 97 < slow[-1] < 100
    gaps = [b - a for a, b in pairwise(slow)]
    assert sum(gap > 0.1 for gap in gaps) == pytest.approx(1000 * 0.368, rel=0.15)  # exp(-1): no metronome
    assert len(set(poisson(10, 1000, 7, group=50))) == 20


def test_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"arrival_s": 2, "prompt_tokens": 6, "max_tokens": 3, "prefix": "a", "prefix_tokens": 4}\n\n'
        '{"arrival_s": 1.5, "prompt": [5, 6, 7], "max_tokens": 1, "user": "x"}\n'
        '{"arrival_s": 3, "prompt_tokens": 9, "max_tokens": 2, "prefix": "a", "prefix_tokens": 5}\n'
    )
    source = Source.of(MIX, path)
    plans = list(Schedule().plans(source, lambda: 0.0))
    assert plans == [Plan(how="trace", requests=3)]
    found = source.asks(table(plans[0], source))
    assert [(a.due, len(a.prompt), a.max_tokens) for a in found] == [(1.5, 3, 1), (2.0, 6, 3), (3.0, 9, 2)]
    assert found[0].prompt == (5, 6, 7)
    assert found[1].prompt[:4] == found[2].prompt[:4]
    assert found[1].prompt[4:] != found[2].prompt[4:6]
    assert source.asks([0.0] * 3) != source.asks([0.0] * 3, turn=1)


@pytest.mark.parametrize(
    "line, said",
    [
        ("{", "line 1: Invalid JSON"), ('{"max_tokens": 2}', "either prompt_tokens or prompt"), ("", "no requests"),
        ('{"prompt_tokens": 3, "max_tokens": 1, "prefix": 1, "prefix_tokens": 4}', "at most prompt_tokens"),
        ('{"prompt": [1], "max_tokens": 1, "arrival_s": 1}\n{"prompt": [1], "max_tokens": 1}', "arrival_s"),
    ],
)  # fmt: skip
def test_a_trace_that_is_none(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "trace.jsonl").write_text(line)
    with pytest.raises(ValueError, match=said):
        Source.of(MIX, tmp_path / "trace.jsonl")
