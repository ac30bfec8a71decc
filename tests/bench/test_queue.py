"""`bench queue`: its limit by hand, its clock from the planned arrival, and a file that says what ran."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from nanobench.cli import app
from nanobench.micro import queue, queue_load, queue_prefix
from nanobench.micro.queue import PARTS, QueueReport, lines
from nanobench.micro.queue_arrivals import ArrivalRuns, Gaps
from nanobench.micro.queue_burst import BandwidthLimit, BurstRuns, bandwidth_limit
from nanobench.micro.queue_load import Load, at_once, drawn, greedy
from nanobench.micro.queue_pool import PoolRuns, pool_blocks
from nanobench.micro.queue_prefix import PrefixRuns
from nanobench.micro.queue_records import Counted, Latency, Run, WarmUp
from nanoinfer.model.config import PRESETS
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Completion, Metrics
from tests.bench.samples import STAMP

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
    metrics = Metrics(ttft_s=ttft, itl_s=(gap,) * (new - 1))
    return Completion(index, (1,) * prompt, (2,) * new, "", "length", 0, metrics)


def test_a_run_is_what_came_back() -> None:
    done = [completion(0, 4, 3, 0.5, 0.25), completion(1, 2, 1, 0.125, 9.0), completion(2, 6, 2, 0.25, 0.75)]
    stats = SimpleNamespace(cached_tokens=0)

    def generate(prompts: Any, params: Any) -> list[Completion]:
        stats.cached_tokens += 3
        return done[: len(prompts)] if len(prompts) == 3 else done[1:]

    llm: Any = SimpleNamespace(stats=stats, generate=generate)
    run = at_once(llm, [[1] * 4, [1] * 2, [1] * 6], [greedy(9)] * 3)
    assert (run.requests, run.prompt_tokens, run.new_tokens) == (3, 12, 6)
    assert run.ttft_s == (0.5, 0.125, 0.25)  # in the order of the requests
    assert (run.ttft.p50, run.itl.count, run.itl.longest) == (0.25, 3, 0.75)
    assert run.computed_share == 0.75
    assert run.tokens_per_s == 6 / run.seconds
    with pytest.raises(ValueError, match="a request was lost"):
        at_once(llm, [[1] * 4, [1] * 2], [greedy(9)] * 2)


def test_a_pool_holds_a_share_of_the_longest_texts() -> None:
    assert pool_blocks([16, 17, 32, 48], 8, 0.25) == 4  # 1 + 2 + 2 + 3 of four rows; eight take 16
    assert pool_blocks([16, 200], 2, 0.1) == 13  # a text must fit, or it is refused


class Told:
    """An LLM that notes what it is asked, and answers at once."""

    def __init__(self, on: bool, log: list[tuple[bool, list[list[int]], int]]) -> None:
        self.on, self.log, self.stats, self.closed = on, log, SimpleNamespace(), False

    def generate(self, prompts: list[list[int]], params: Any) -> list[Completion]:
        self.log.append((self.on, prompts, params.max_tokens if not isinstance(params, list) else len(params)))
        return [completion(i, len(prompt), 2, 0.5 if self.on else 2.0, 0.1) for i, prompt in enumerate(prompts)]

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *exception: object) -> None:
        self.closed = True


def test_the_shared_part_is_brought_by_one_request_before(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[bool, list[list[int]], int]] = []
    told: list[Told] = []

    def made(model: Any, rows: int, prefix_caching: bool) -> tuple[Told, WarmUp]:
        told.append(Told(prefix_caching, log))
        return told[-1], WarmUp(seconds=1, captures=0, graph_bytes=0)

    monkeypatch.setattr(queue_load, "made", made)
    model: Any = SimpleNamespace(config=PRESETS["gpt2"])
    found = queue_prefix.prefix("gpt2", model, TINY)
    assert found.gain == 4.0
    assert [on for on, _, _ in log] == [True, True, False, False] * 2
    assert all(llm.closed for llm in told)
    turns = [log[at : at + 2] for at in range(0, 8, 2)]
    for (_, first, _), (_, prompts, _) in turns:
        assert len(first) == 1
        assert len(prompts) == 3
        assert {len(prompt) for prompt in prompts} == {40}
        assert {tuple(prompt[:32]) for prompt in prompts} == {tuple(first[0][:32])}
        assert len({tuple(prompt[32:]) for prompt in first + prompts}) == 4
    assert turns[0][1][1] == turns[1][1][1]  # both engines are asked the same
    assert turns[0][0][1][0][:32] != turns[2][0][1][0][:32]  # and each turn something else


def test_the_command_writes_what_it_prints(
    tmp_path: Path, small_model: GPT2, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(queue, "load_model", lambda *a, **k: small_model)
    monkeypatch.setattr(queue, "copy_bandwidth", lambda device: 1e9)
    monkeypatch.setattr(queue, "CPU", TINY)
    report = queue.measure("cpu", tmp_path / "queue.json")
    assert QueueReport.load(tmp_path / "queue.json") == report
    assert (report.model, report.dtype, report.asked) == ("random:small", "float32", TINY)
    (burst,) = report.burst
    prompts, new = drawn(6, (2, 9), (2, 6), small_model.config.vocab_size)
    for run in burst.runs:
        assert (run.prompt_tokens, run.new_tokens) == (sum(map(len, prompts)), sum(new))
        assert run.itl.count == sum(new) - 6
        assert run.counted.prefill_steps + run.counted.decode_steps >= burst.limit.least_steps
    assert [arrival.max_batched_tokens for arrival in report.arrivals] == [256, 16]
    for arrival in report.arrivals:
        assert len(arrival.ttft_s) == 3
        assert 0 < arrival.alone.counted.prefill_steps <= arrival.beside.counted.prefill_steps  # or late in one
    (prefix,) = report.prefix
    assert len(prefix.cached) == len(prefix.plain) == 2
    assert all(run.computed_share == 1 for run in prefix.plain)
    assert report.pool is not None
    assert any(run.new_tokens < 6 * 20 for run in report.pool.preemption)  # texts end at random
    assert len({run.new_tokens for run in (*report.pool.preemption, *report.pool.reservation)}) == 1  # seeds are given
    assert list(report.took_s) == list(PARTS)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-len(list(lines(report))) :] == list(lines(report))


def test_parts_and_numbers_can_be_chosen(tmp_path: Path, small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "load_model", lambda *a, **k: small_model)
    monkeypatch.setattr(queue, "copy_bandwidth", lambda device: 1e9)
    monkeypatch.setattr(queue, "CPU", TINY)
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


def test_a_file_of_a_gpu_stays_small(tmp_path: Path) -> None:
    """A whole run of the default load: under 200 KB."""
    load, draws = Load(), random.Random(0)

    def run(requests: int) -> Run:
        times = [draws.uniform(0, 2) for _ in range(requests)]
        latency = Latency.of(times)
        return Run(
            seconds=1.23456789, requests=requests, prompt_tokens=10**6, new_tokens=10**6,
            ttft_s=tuple(round(t, 6) for t in times), ttft=latency, itl=latency, counted=Counted(fallbacks={}),
        )  # fmt: skip

    warm_up = WarmUp(seconds=1.23456789, captures=500, graph_bytes=10**9)
    limit = BandwidthLimit(least_steps=500, weights_s=0.1, keys_and_values_s=0.1, tokens_per_s=1e5)
    gaps = Gaps(
        itl=run(9).itl, p999_s=1 / 3, bin_s=1 / 3, longest_s=tuple([1.234567] * 100), counted=Counted(fallbacks={})
    )
    arrival = ArrivalRuns(
        max_batched_tokens=8192, warm_up=warm_up, alone=gaps, beside=gaps, ttft_s=run(100).ttft_s, ttft=run(9).ttft,
        asked_per_s=20, achieved_per_s=20, latest_s=0.001,
    )  # fmt: skip
    turns = tuple(run(load.sharing) for _ in range(load.repeats))
    pool = tuple(run(load.pool_requests) for _ in range(load.repeats))
    QueueReport(
        model="random:gpt2", dtype="bfloat16", asked=load, copy_bytes_per_s=4e12, took_s={}, arrivals=(arrival,) * 3,
        burst=tuple(
            BurstRuns(
                rows=rows, max_batched_tokens=8192, warm_up=warm_up, limit=limit,
                runs=tuple(run(load.requests) for _ in range(load.repeats)),
            )
            for rows in load.rows
        ),
        prefix=(PrefixRuns(model="random:gpt2", shared_share=0.9, cached=turns, plain=turns),) * 2,
        pool=PoolRuns(rows=256, kv_blocks=3000, preemption=pool, reservation=pool), **STAMP,
    ).save(tmp_path / "queue.json")  # fmt: skip
    assert (tmp_path / "queue.json").stat().st_size < 200_000
