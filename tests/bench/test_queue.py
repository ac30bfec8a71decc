"""`bench queue`: its clock from the planned arrival, and a file that says what ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanobench.micro import queue, queue_load
from nanobench.micro.queue import QueueReport
from nanobench.micro.queue_arrivals import OpenRun
from nanoinfer import LLM
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request, SamplingParams

TINY = queue_load.Load(
    prompt=(2, 9), repeats=2, chunks=(None, 16), running=2, opening=3,
    running_new=12, arriving=40, arriving_new=2, per_second=60, seconds=0.05, spare=2, sharing=3, long=40, shared=32,
    sharing_new=2, pool_rows=4, pool_requests=6, pool_new=20, stop_after=8,
)  # fmt: skip


@pytest.fixture
def model(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> GPT2:
    """What the command measures: a small model, with a tiny load."""
    monkeypatch.setattr(queue, "load_model", lambda *a, **k: small_model)
    monkeypatch.setattr(queue, "CPU", TINY)
    return small_model


def test_the_command_writes_what_it_prints(tmp_path: Path, model: GPT2, capsys: pytest.CaptureFixture[str]) -> None:
    report = queue.measure("cpu", tmp_path / "queue.json")
    assert QueueReport.load(tmp_path / "queue.json") == report
    assert (report.model, report.dtype, queue_load.Load(**report.asked)) == ("random:small", "float32", TINY)
    prompts, _ = queue_load.drawn(6, (2, 9), TINY.new, model.config.vocab_size)
    for run in (*report.pool.preemption, *report.pool.reservation):
        assert run.prompt_tokens == sum(map(len, prompts))
        assert run.itl.count == run.new_tokens - 6
    assert [(arrival.max_batched_tokens, len(arrival.ttft_s)) for arrival in report.arrivals] == [(256, 3), (16, 3)]
    for arrival in report.arrivals:
        assert 0 < arrival.alone.counted.prefill_steps <= arrival.beside.counted.prefill_steps  # or late in one
    (prefix,) = report.prefix
    assert [run.computed_share for run in prefix.cached] == pytest.approx([0.2] * 2)  # one request brought the 32 of 40
    assert [run.computed_share for run in prefix.plain] == [1, 1]
    assert any(run.new_tokens < 6 * 20 for run in report.pool.preemption)  # texts end at random
    assert len({run.new_tokens for run in (*report.pool.preemption, *report.pool.reservation)}) == 1  # seeds are given
    printed = capsys.readouterr().out.splitlines()
    assert {f"{name}: {each}" for name in ("arrivals", "prefix") for each in getattr(report, name)} < set(printed)


def request(index: int, limit: int) -> Request:
    return Request(index, (1, 2), SamplingParams(max_tokens=limit), 0, limit, frozenset())


def test_the_clock_starts_at_the_planned_arrival(small_model: GPT2) -> None:
    """And not when a request is submitted, which is later."""
    due = [0.0, 0.001]
    with LLM(small_model, engine="paged", max_batch=4) as llm:
        running = llm.requests([[1, 2]] * 2, SamplingParams(temperature=0, max_tokens=5))
        found = OpenRun(llm, running, [request(8, 2), request(9, 2)], due, 0.0)
    assert [row.asked - found.start for row in found.newcomers] == pytest.approx(due, abs=1e-6)
    assert all(now > then for now, then in zip(found.submitted, due, strict=True))
    assert {len(row.times) for generation in found.generations for row in generation} == {5}


def test_what_goes_wrong_outside_is_raised(small_model: GPT2) -> None:
    """Requests too long for the pool: the thread that submits fails, and the run does not wait for ever."""
    with LLM(small_model, engine="paged", max_batch=4, kv_blocks=2) as llm:
        running = llm.requests([[1, 2]], SamplingParams(temperature=0, max_tokens=4))
        with pytest.raises(ValueError, match="which 2 blocks"):
            OpenRun(llm, running, [request(0, 90)], [0.0], 0.0)
