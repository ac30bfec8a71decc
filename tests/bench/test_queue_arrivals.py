"""Arrivals of `bench queue`: on a clock that steps move, whatever an engine does late counts from the planned time."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from nanobench.micro import queue_arrivals
from nanobench.micro.queue_arrivals import ArrivalRuns, OpenRun
from nanoinfer import LLM
from nanoinfer.engine.scheduler import Row
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request, SamplingParams


class Clock:
    """Time that only `move` moves; it goes on once a thread that sleeps is asleep again, or has no more to do."""

    def __init__(self, to_come: int) -> None:
        self.now, self.to_come, self._until = 0.0, to_come, 0.0
        self._changed = threading.Condition()

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self._changed:
            self._until = self.now + seconds
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.now >= self._until, timeout=20)

    def arrived(self) -> None:
        with self._changed:
            self.to_come -= 1
            self._changed.notify_all()

    def move(self, seconds: float) -> None:
        with self._changed:
            self.now += seconds
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: not self.to_come or self._until > self.now, timeout=20)


class FakeEngine:
    """Gives each row a token a step, which takes a second; where it is deaf, the step takes until it is not."""

    def __init__(self, clock: Clock, newcomers: list[Request], deaf: tuple[float, float]) -> None:
        self.clock, self.newcomers, self.deaf, self.rows = clock, newcomers, deaf, list[Row]()
        self._turn = threading.Lock()

    @property
    def busy(self) -> bool:
        return bool(self.rows)

    def submit(self, request: Request, asked: float | None = None) -> Row:
        row = Row(request, self.clock.now if asked is None else asked)
        with self._turn:
            self.rows.append(row)
        if request in self.newcomers:
            self.clock.arrived()
        return row

    def step(self) -> None:
        with self._turn:
            running = list(self.rows)
        begin, end = self.deaf
        self.clock.move(end - begin if self.clock.now == begin else 1.0)
        for row in running:
            row.token_ids.append(0)
            row.times.append(self.clock.now)
            row.ended = len(row.token_ids) == row.request.limit
        with self._turn:
            self.rows = [row for row in self.rows if not row.ended]


def request(index: int, limit: int) -> Request:
    return Request(index, (1, 2), SamplingParams(max_tokens=limit), 0, limit, frozenset())


def run(
    monkeypatch: pytest.MonkeyPatch, due: list[float], seconds: float, deaf: tuple[float, float] = (-1.0, -1.0)
) -> OpenRun:
    """Two rows of five tokens again and again, and newcomers of two tokens when they are due."""
    newcomers = [request(9 + n, 2) for n in range(len(due))]
    clock = Clock(len(due))
    monkeypatch.setattr(queue_arrivals, "time", clock)
    llm: Any = SimpleNamespace(core=FakeEngine(clock, newcomers, deaf), stats=SimpleNamespace())
    return OpenRun(llm, [request(0, 5), request(1, 5)], newcomers, due, seconds)


def test_the_clock_starts_at_the_planned_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is deaf from second 2 to 8: prompts due at 3, 5 and 7.5 wait for it, and 9.25 does not."""
    found = run(monkeypatch, [3.0, 5.0, 7.5, 9.25], 12.0, deaf=(2.0, 8.0))
    assert found.submitted == [8.0, 8.0, 8.0, 10.0]  # as soon as the clock has been there, whoever is under way
    assert [row.metrics().ttft_s for row in found.newcomers] == [6.0, 4.0, 1.5, 1.75]
    assert found.gaps().itl.longest == 6.0


def test_running_rows_begin_again_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, [], 12.0)
    assert [[row.times for row in generation] for generation in found.generations] == [
        [[begin + n for n in range(1, 6)]] * 2 for begin in (0.0, 5.0, 10.0)
    ]
    assert found.end == 15.0
    gaps = found.gaps()
    assert (gaps.itl.count, gaps.itl.longest, gaps.bin_s) == (3 * 2 * 4, 1.0, 0.15)


def test_a_gap_in_which_another_row_of_the_generation_begins_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompts of the rows themselves are no disturbance from outside."""
    found = run(monkeypatch, [], 0.0)
    ((early, late),) = found.generations  # one, where no time is asked for
    early.times, late.times = [1.0, 5.0, 6.0, 7.0], [5.0, 6.0, 8.0, 8.5]
    found.end = 10.0
    gaps = found.gaps()
    assert (gaps.itl.count, gaps.itl.longest) == (5, 2.0)
    assert {at: gap for at, gap in enumerate(gaps.longest_s) if gap} == {60: 1.0, 70: 1.0, 80: 2.0, 85: 0.5}


def test_what_goes_wrong_outside_is_raised(small_model: GPT2) -> None:
    """Requests too long for the pool: the thread that submits fails, and the run does not wait for ever."""
    with LLM(small_model, engine="paged", max_batch=4, kv_blocks=2) as llm:
        running = llm.requests([[1, 2]], SamplingParams(temperature=0, max_tokens=4))
        with pytest.raises(ValueError, match="which 2 blocks"):
            OpenRun(llm, running, [request(0, 90)], [0.0], 0.0)


@pytest.mark.parametrize("achieved, off", [(20.0, False), (19.85, False), (19.7, True), (20.3, True)])
def test_another_rate_than_asked_is_marked(achieved: float, off: bool) -> None:
    assert ArrivalRuns.model_construct(asked_per_s=20.0, achieved_per_s=achieved).off == off
