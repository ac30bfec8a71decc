"""`bench queue`: its limit by hand, its clock from the planned arrival, and a file that says what ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nanobench.micro import queue, queue_arrivals, queue_burst, queue_load
from nanobench.micro.queue import PARTS, QueueReport, lines
from nanobench.micro.queue_arrivals import ArrivalRuns, OpenRun
from nanoinfer import LLM
from nanoinfer.engine.scheduler import Row
from nanoinfer.model.config import PRESETS
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request, SamplingParams

TINY = queue_load.Load(
    rows=(3,), requests=6, prompt=(2, 9), new=(2, 6), repeats=2, chunks=(None, 16), running=2, opening=3,
    running_new=12, arriving=40, arriving_new=2, per_second=60, seconds=0.05, spare=2, sharing=3, long=40, shared=32,
    sharing_new=2, pool_rows=4, pool_requests=6, pool_new=20, stop_after=8,
)  # fmt: skip


def test_the_limit_counts_what_must_be_read() -> None:
    """A prompt of 3 with 2 new tokens, one of 5 with 4, and one with a single token: that is its prompt's own."""
    config, lengths = PRESETS["tiny"], [(3, 2), (5, 4), (9, 1)]
    contexts = (3 + 1) + (5 + 1) + (5 + 2) + (5 + 3)  # what each token but the first reads, itself included
    found = queue_burst.bandwidth_limit(config, 2, lengths, 2, 1000.0)
    assert found.least_steps == 4
    assert found.weights_s == pytest.approx(4 * config.parameters * 2 / 1000)
    assert found.keys_and_values_s == pytest.approx(contexts * config.kv_numbers * 2 / 1000)
    assert found.tokens_per_s == pytest.approx(7 / (found.weights_s + found.keys_and_values_s))


@pytest.fixture
def model(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> GPT2:
    """What the command measures: a small model, with a tiny load."""
    monkeypatch.setattr(queue, "load_model", lambda *a, **k: small_model)
    monkeypatch.setattr(queue, "copy_bandwidth", lambda device: 1e9)
    monkeypatch.setattr(queue, "CPU", TINY)
    return small_model


def test_the_command_writes_what_it_prints(tmp_path: Path, model: GPT2, capsys: pytest.CaptureFixture[str]) -> None:
    report = queue.measure("cpu", tmp_path / "queue.json")
    assert QueueReport.load(tmp_path / "queue.json") == report
    assert (report.model, report.dtype, report.asked) == ("random:small", "float32", TINY)
    (burst,) = report.burst
    prompts, new = queue_load.drawn(6, (2, 9), (2, 6), model.config.vocab_size)
    for run in burst.runs:
        assert (run.prompt_tokens, run.new_tokens) == (sum(map(len, prompts)), sum(new))
        assert run.itl.count == sum(new) - 6
        assert run.counted.prefill_steps + run.counted.decode_steps >= burst.limit.least_steps
    assert [(arrival.max_batched_tokens, len(arrival.ttft_s)) for arrival in report.arrivals] == [(256, 3), (16, 3)]
    for arrival in report.arrivals:
        assert 0 < arrival.alone.counted.prefill_steps <= arrival.beside.counted.prefill_steps  # or late in one
    (prefix,) = report.prefix
    assert [run.computed_share for run in prefix.cached] == pytest.approx([0.2] * 2)  # one request brought the 32 of 40
    assert [run.computed_share for run in prefix.plain] == [1, 1]
    assert report.pool is not None
    assert any(run.new_tokens < 6 * 20 for run in report.pool.preemption)  # texts end at random
    assert len({run.new_tokens for run in (*report.pool.preemption, *report.pool.reservation)}) == 1  # seeds are given
    assert list(report.took_s) == list(PARTS)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-len(list(lines(report))) :] == list(lines(report))


LATE = 0.5  # seconds that every sleep takes too long


@dataclass
class Stage:
    """An engine, a clock and a thread in one: a step takes a second and gives each row a token."""

    now: float = 0.0
    rows: list[Row] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return bool(self.rows)

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + LATE

    def submit(self, request: Request, asked: float | None = None) -> Row:
        self.rows.append(Row(request, self.now if asked is None else asked))
        return self.rows[-1]

    def step(self) -> None:
        self.now += 1
        for row in self.rows:
            row.token_ids.append(0)
            row.times.append(self.now)
            row.ended = len(row.token_ids) == row.request.limit
        self.rows = [row for row in self.rows if not row.ended]


@contextmanager
def done_ahead(threads: int) -> Iterator[Any]:
    """A thread that has done all its work before the engine's first step."""
    yield SimpleNamespace(submit=lambda work: work() or SimpleNamespace(result=int, done=lambda: True))


def request(index: int, limit: int) -> Request:
    return Request(index, (1, 2), SamplingParams(max_tokens=limit), 0, limit, frozenset())


def run(monkeypatch: pytest.MonkeyPatch, due: list[float], seconds: float) -> OpenRun:
    """Two rows of five tokens again and again, and newcomers of two tokens when they are due."""
    stage: Any = Stage()
    monkeypatch.setattr(queue_arrivals, "time", stage)
    monkeypatch.setattr(queue_arrivals, "ThreadPoolExecutor", done_ahead)
    llm: Any = SimpleNamespace(core=stage, stats=SimpleNamespace())
    return OpenRun(llm, [request(0, 5), request(1, 5)], [request(9 + n, 2) for n in range(len(due))], due, seconds)


def test_the_clock_starts_at_the_planned_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late a request is submitted, and the engine's first step with it."""
    found = run(monkeypatch, [3.0, 5.0, 7.5], 0.0)
    assert found.submitted == [3.5, 5.5, 8.0]
    assert [row.metrics().ttft_s for row in found.newcomers] == [6.0, 4.0, 1.5]


def test_running_rows_begin_again_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, [], 12.0)
    assert [[row.times for row in generation] for generation in found.generations] == [
        [[begin + n for n in range(1, 6)]] * 2 for begin in (0.0, 5.0, 10.0)
    ]
    assert found.end == 15.0
    gaps = found.gaps()
    assert (gaps.itl.count, gaps.itl.longest, gaps.bin_s) == (3 * 2 * 4, 1.0, 0.15)


def test_what_goes_wrong_outside_is_raised(small_model: GPT2) -> None:
    """Requests too long for the pool: the thread that submits fails, and the run does not wait for ever."""
    with LLM(small_model, engine="paged", max_batch=4, kv_blocks=2) as llm:
        running = llm.requests([[1, 2]], SamplingParams(temperature=0, max_tokens=4))
        with pytest.raises(ValueError, match="which 2 blocks"):
            OpenRun(llm, running, [request(0, 90)], [0.0], 0.0)


@pytest.mark.parametrize("achieved, off", [(20.0, False), (19.85, False), (19.7, True), (20.3, True)])
def test_another_rate_than_asked_is_marked(achieved: float, off: bool) -> None:
    assert ArrivalRuns.model_construct(asked_per_s=20.0, achieved_per_s=achieved).off == off
