"""`bench queue`: its limit by hand, and a file that says what ran."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from nanobench.cli import app
from nanobench.micro import queue
from nanobench.micro.queue import PARTS, QueueReport, lines
from nanobench.micro.queue_burst import bandwidth_limit
from nanobench.micro.queue_load import Load, at_once, drawn, greedy
from nanobench.micro.queue_pool import pool_blocks
from nanobench.micro.queue_records import Counted, Latency
from nanoinfer.model.config import PRESETS
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Completion, Metrics

TINY = Load(
    rows=(3,), requests=6, prompt=(2, 9), new=(2, 6), repeats=2, chunks=(None, 16), running=2, opening=3,
    running_new=12, arriving=40, arriving_new=2, per_second=60, seconds=0.05, spare=2, sharing=3, long=40, shared=32,
    sharing_new=2, pool_rows=4, pool_requests=6, pool_new=20, stop_after=8,
)  # fmt: skip


@pytest.mark.parametrize("rows, steps", [(1, 7), (2, 4), (3, 4)])
def test_the_limit_counts_what_must_be_read(rows: int, steps: int) -> None:
    """A prompt of 3 with 2 new tokens, one of 5 with 4, and one with a single token: that is its prompt's own."""
    config, lengths = PRESETS["tiny"], [(3, 2), (5, 4), (9, 1)]
    contexts = (3 + 1) + (5 + 1) + (5 + 2) + (5 + 3)  # what each token but the first reads, itself included
    found = bandwidth_limit(config, 2, lengths, rows, 1000.0)
    assert found.least_steps == steps
    assert found.weights_s == pytest.approx(steps * config.parameters * 2 / 1000)
    assert found.keys_and_values_s == pytest.approx(contexts * config.kv_numbers * 2 / 1000)
    assert found.tokens_per_s == pytest.approx(7 / (found.weights_s + found.keys_and_values_s))


def test_a_burst_is_the_same_every_time() -> None:
    """Seed 7: all lengths first, then the prompts."""
    draws = random.Random(7)
    lengths = [(draws.randint(16, 512), draws.randint(16, 256)) for _ in range(20)]
    prompts = [[draws.randrange(50257) for _ in range(length)] for length, _ in lengths]
    assert drawn(20, (16, 512), (16, 256), 50257) == (prompts, [new for _, new in lengths])


def test_quantiles_are_of_all_times() -> None:
    found = Latency.of([float(n) for n in range(201)][::-1])
    assert (found.count, found.p50, found.p99, found.longest) == (201, 100.0, 198.0, 200.0)
    assert found.curve == tuple(2.0 * n for n in range(101))


def test_counts_are_of_one_run() -> None:
    before = Counted(prefill_steps=3, captures=2, fallbacks={"a": 1, "b": 1})
    stats = SimpleNamespace(prefill_steps=5, captures=2, cached_tokens=7, fallbacks=Counter(a=1, b=4))
    now = Counted.so_far(SimpleNamespace(stats=stats))  # type: ignore[arg-type]
    assert now.since(before) == Counted(prefill_steps=2, cached_tokens=7, fallbacks={"b": 3})
    assert "CAPTURES" in str(Counted(captures=1, fallbacks={}))
    assert "CAPTURES" not in str(before.since(before))


def completion(index: int, prompt: int, new: int, ttft: float, gap: float) -> Completion:
    return Completion(index, (1,) * prompt, (2,) * new, "", "length", 0, Metrics(ttft_s=ttft, itl_s=(gap,) * (new - 1)))


def test_a_run_is_what_came_back() -> None:
    done = [completion(0, 4, 3, 0.5, 0.25), completion(1, 2, 1, 0.125, 9.0), completion(2, 6, 2, 0.25, 0.75)]
    stats = SimpleNamespace(cached_tokens=0)

    def generate(prompts: Any, params: Any) -> list[Completion]:
        stats.cached_tokens += 3
        return done

    llm: Any = SimpleNamespace(stats=stats, generate=generate)
    run = at_once(llm, [[1] * 4, [1] * 2, [1] * 6], [greedy(9)] * 3)
    assert (run.requests, run.prompt_tokens, run.new_tokens) == (3, 12, 6)
    assert run.ttft_s == (0.5, 0.125, 0.25)  # in the order of the requests
    assert (run.ttft.p50, run.itl.count, run.itl.longest) == (0.25, 3, 0.75)
    assert run.computed_share == 0.75
    assert run.tokens_per_s == 6 / run.seconds
    done.pop()
    with pytest.raises(ValueError, match="a request was lost"):
        at_once(llm, [[1] * 4, [1] * 2, [1] * 6], [greedy(9)] * 3)


def test_a_pool_holds_a_share_of_the_longest_texts() -> None:
    assert pool_blocks([16, 17, 32, 48], 8, 0.25) == 4  # 1 + 2 + 2 + 3 of four rows; eight take 16
    assert pool_blocks([16, 200], 2, 0.1) == 13  # a text must fit, or it is refused


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
    prompts, new = drawn(6, (2, 9), (2, 6), model.config.vocab_size)
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


@pytest.mark.usefixtures("model")
def test_parts_and_numbers_can_be_chosen(tmp_path: Path) -> None:
    out = ["--device", "cpu", "--out", str(tmp_path / "q.json")]
    chosen = ["--part", "burst", "--rows", "2", "--rows", "4", "--budget", "0", "--budget", "8", "--requests", "3",
              "--repeats", "1"]  # fmt: skip
    assert CliRunner().invoke(app, ["queue", *out, *chosen]).exit_code == 0
    report = QueueReport.load(tmp_path / "q.json")
    assert [(b.rows, b.max_batched_tokens, len(b.runs)) for b in report.burst] == [
        (2, 256, 1), (2, 8, 1), (4, 256, 1), (4, 8, 1),
    ]  # fmt: skip
    assert {run.requests for b in report.burst for run in b.runs} == {3}
    assert (report.arrivals, report.prefix, report.pool) == ((), (), None)
    refused = CliRunner().invoke(app, ["queue", *out, "--part", "bursts"])
    assert refused.exit_code == 2
    assert f"part must be one of {', '.join(PARTS)}, not bursts" in refused.stderr
