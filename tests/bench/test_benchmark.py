"""The benchmark's loop with a system made of numbers: what is recorded, what is left to do, what is refused.

No clock is read: the stub's generations move a clock of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import nanobench.core.benchmark
import nanobench.core.case_runner
import nanobench.core.machine
from nanobench.core.benchmark import Benchmark
from nanobench.core.case_runner import runs_due
from nanobench.core.estimate import MEMORY_SHARE, OVERHEAD_S
from nanobench.core.machine import launches
from nanobench.core.presets import Preset, limit_seconds
from nanobench.core.records import Report
from nanobench.systems import OTHERS
from nanobench.systems.base import Limits, Missing
from nanoinfer.cache.dense import DenseCache
from nanoinfer.engine.graph_stats import GraphStats
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import random_model

TINY = ModelConfig(vocab_size=64, n_positions=128, n_embd=16, n_layer=1, n_head=2)
Call = tuple[str, int, int]  # engine, rows, new tokens


@dataclass
class Clock:
    """Time that passes only where a system works; and who worked, in order."""

    now: float = 0.0
    calls: list[Call] = field(default_factory=list)

    def perf_counter(self) -> float:
        return self.now


@dataclass
class Stub:
    """A step takes a hundredth of a second for all rows and a tenth of one more for each of them."""

    name: str
    clock: Clock
    before: Callable[[Call], None]
    pace: Callable[[str], float] = lambda name: 1.0

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        call = (self.name, len(prompts), new_tokens)
        self.before(call)
        self.clock.calls.append(call)
        self.clock.now += self.pace(self.name) * new_tokens * (0.01 + 0.1 * len(prompts))
        return [[1] * new_tokens for _ in prompts]

    def step_times(self, prompts: Tensor, new_tokens: int) -> list[float]:
        return [0.01] * (new_tokens - 1)


@dataclass
class Stage:
    """A benchmark of stubs."""

    clock: Clock
    path: Path
    said: list[str] = field(default_factory=list)
    before: Callable[[Call], None] = lambda call: None
    slower: dict[str, float] = field(default_factory=dict)

    def run(self, **changes: object) -> Report:
        preset = Preset("stub", ("tiny",), (1, 2, 4), (3,), new_tokens=5, engines=("one", "two"), repeats=3)
        benchmark = Benchmark(preset.changed(**changes), "cpu", self.path, self.said.append)
        return benchmark.run()

    def status(self, report: Report) -> dict[tuple[str, int], str]:
        return {(r.case.engine, r.case.batch): r.status for r in report.results}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(Clock(), tmp_path / "stub.json")
    model = random_model(TINY, 0, device=torch.device("cpu"))
    for module in (nanobench.core.benchmark, nanobench.core.case_runner):
        monkeypatch.setattr(module, "time", made.clock)
    monkeypatch.setattr(
        nanobench.core.case_runner, "gc", SimpleNamespace(collect=lambda: 0)
    )  # of a test's whole process: slow
    monkeypatch.setattr(nanobench.core.benchmark, "copy_bandwidth", lambda device: 1e9)
    monkeypatch.setattr(nanobench.core.benchmark, "import_seconds", lambda: 1.0)
    monkeypatch.setattr(nanobench.core.machine, "commit", lambda: "0123456789ab")
    monkeypatch.setattr(nanobench.core.benchmark, "load_config", lambda name: TINY)
    monkeypatch.setattr(nanobench.core.benchmark, "load_model", lambda *a, **k: model)
    for name in ("one", "two"):
        pace = lambda name: made.slower.get(name, 1.0)  # noqa: E731
        stub = Stub(name, made.clock, lambda call: made.before(call), pace)  # noqa: PLW0108  # looked up at the call
        monkeypatch.setitem(OTHERS, name, lambda model, limits, stub=stub: stub)
    return made


def test_what_is_measured(stage: Stage) -> None:
    report = stage.run()
    assert set(stage.status(report).values()) == {"ok"}
    assert len(report.results) == 6
    for r in report.results:
        step = 0.01 + 0.1 * r.case.batch
        assert r.generate_s is not None
        assert r.ttft_s is not None
        assert r.generate_s.median == pytest.approx(5 * step)
        assert r.ttft_s.median == pytest.approx(step)
        assert r.tokens_per_s == pytest.approx(r.case.batch / step)
        assert r.floor_share == pytest.approx(limit_seconds(TINY, 4, r.case.batch, 5.5, 1e9) / step)
        assert r.tokens == 5 * r.case.batch
        assert len(r.generate_s.samples) == 3
    assert Report.load(stage.path) == report
    assert any("bandwidth limit" in line for line in stage.said)


def test_engines_take_turns(stage: Stage) -> None:
    stage.run(batches=(1,))
    timed = [name for name, _, _ in stage.clock.calls[6:]]  # the first three of each are its warm-up
    assert timed == ["one", "one", "two", "two"] * 3


def test_an_interrupted_run_goes_on(stage: Stage) -> None:
    """Ctrl-C in the second batch: what was measured stays, is not measured again, and the rest follows."""

    def interrupt(call: Call) -> None:
        if call[1] == 2:
            raise KeyboardInterrupt

    stage.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        stage.run()
    assert stage.status(Report.load(stage.path)) == {("one", 1): "ok", ("two", 1): "ok"}
    stage.before, stage.clock.calls = (lambda call: None), []
    report = stage.run()
    assert len(report.results) == 6
    assert {rows for _, rows, _ in stage.clock.calls} == {2, 4}
    stage.clock.calls = []
    assert stage.run() == report
    assert stage.clock.calls == []


def interrupt_after(stage: Stage, calls: int) -> None:
    """Ctrl-C once so many calls are done."""

    def interrupt(call: Call) -> None:
        if len(stage.clock.calls) == calls:
            raise KeyboardInterrupt

    stage.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        stage.run(batches=(1,))
    stage.before, stage.clock.calls = (lambda call: None), []


def test_an_interrupted_batch_goes_on_with_the_turns_it_has(stage: Stage) -> None:
    """Ctrl-C between the two calls of a turn, when one engine has had two and the other one: only that turn is lost."""
    interrupt_after(stage, 6 + 7)
    left = Report.load(stage.path).unfinished
    assert left is not None
    assert {t.case.engine: (len(t.generate_s), len(t.ttft_s)) for t in left.turns} == {"one": (2, 2), "two": (1, 1)}
    report = stage.run(batches=(1,))
    timed = [name for name, _, _ in stage.clock.calls[6:]]
    assert timed == ["two", "two", "one", "one", "two", "two"]
    assert [len(r.generate_s.samples) for r in report.results if r.generate_s] == [3, 3]
    assert report.unfinished is None
    assert f"going on with {stage.path}: 0 cases and 3 timed runs of 2 more" in stage.said
    assert Report.load(stage.path) == report


def test_a_case_that_was_interrupted_often_is_measured_in_the_end(stage: Stage) -> None:
    """One turn at a time."""
    for turn in range(5):
        interrupt_after(stage, 6 + 2)
        left = Report.load(stage.path).unfinished
        assert left is not None
        assert sum(len(t.ttft_s) for t in left.turns) == turn + 1
    assert {r.status for r in stage.run(batches=(1,)).results} == {"ok"}
    assert len(stage.clock.calls) == 6 + 2


def test_a_failure_after_an_interruption_leaves_nothing_unfinished(stage: Stage) -> None:
    interrupt_after(stage, 6 + 7)

    def fail(call: Call) -> None:
        if call[0] == "one":
            raise RuntimeError("no")

    stage.before = fail
    report = stage.run(batches=(1,))
    assert stage.status(report) == {("one", 1): "failed", ("two", 1): "ok"}
    assert report.unfinished is None


def test_turns_of_other_settings_are_not_mixed(stage: Stage) -> None:
    interrupt_after(stage, 6 + 7)
    with pytest.raises(ValueError, match=r"half measured with batches \(1,\), repeats 3: finish them first"):
        stage.run(batches=(1, 2), repeats=4)


@pytest.mark.parametrize("what", ["commit", "dtype", "preset", "machine"])
def test_a_file_of_another_preset_or_commit_is_not_continued(stage: Stage, what: str) -> None:
    other: dict[str, object] = {"commit": "ba9876543210", "dtype": "bfloat16", "preset": "gpu"}
    other["machine"] = stage.run(batches=(1,)).machine.model_copy(update={"device": "another"})
    Report.load(stage.path).model_copy(update={what: other[what]}).save(stage.path)
    with pytest.raises(ValueError, match=f"stub.json is of another {what}: move it away"):
        stage.run()


def test_a_case_over_budget_is_recorded_before_it_runs(stage: Stage) -> None:
    """1 and 2 rows take 0.55 and 1.05 s a run, so 4 take 2.05 by a straight line: more than 2, and 8 still more."""
    report = stage.run(batches=(1, 2, 4, 8), case_budget_s=2.0)
    assert {key: status for key, status in stage.status(report).items() if status != "ok"} == dict.fromkeys(
        itertools.product(("one", "two"), (4, 8)), "over budget"
    )
    assert not {rows for _, rows, _ in stage.clock.calls} & {4, 8}
    assert report.find(engine="one", batch=4)[0].reason == "about 2.05 s expected, the budget is 2 s a run"
    assert "a smaller batch was over it" in report.find(engine="one", batch=8)[0].reason


def test_an_out_of_memory_case_is_recorded_and_larger_ones_are_not_tried(stage: Stage) -> None:
    def full(call: Call) -> None:
        if call[:2] == ("one", 2):
            raise torch.OutOfMemoryError("no")

    stage.before = full
    status = stage.status(stage.run())
    assert [status["one", b] for b in (1, 2, 4)] == ["ok", "out of memory", "over budget"]
    assert [status["two", b] for b in (1, 2, 4)] == ["ok", "ok", "ok"]  # the other one goes on


def test_a_failure_is_recorded_with_its_reason(stage: Stage) -> None:
    """In the warm-up of two rows, and in a timed run of four."""
    seen: list[Call] = []

    def fail(call: Call) -> None:
        seen.append(call)
        if call[:2] == ("one", 2) or (call[:2] == ("one", 4) and seen.count(call) > 3):
            raise RuntimeError("no such kernel\nand more")

    stage.before = fail
    report = stage.run()
    assert [stage.status(report)["one", b] for b in (1, 2, 4)] == ["ok", "failed", "failed"]
    assert [stage.status(report)["two", b] for b in (1, 2, 4)] == ["ok", "ok", "ok"]
    assert report.find(engine="one", batch=2)[0].reason == "RuntimeError: no such kernel"


def test_a_missing_peer_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(model: object, limits: Limits) -> None:
        raise Missing("two is not installed")

    monkeypatch.setitem(OTHERS, "two", missing)  # type: ignore[arg-type, return-value]
    report = stage.run()
    assert [(r.status, r.reason) for r in report.find(engine="two")] == [("missing", "two is not installed")] * 3
    assert {r.status for r in report.find(engine="one")} == {"ok"}


def test_tokens_are_recounted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that gives fewer tokens than it was asked for is no fast engine."""
    lazy = SimpleNamespace(generate=lambda prompts, new_tokens: [[1] * (new_tokens - 1) for _ in prompts])
    monkeypatch.setitem(OTHERS, "one", lambda model, limits: lazy)
    with pytest.raises(AssertionError, match="one gave 4 tokens, not 5 a row"):
        stage.run()


def test_engines_without_a_cache_make_fewer_tokens() -> None:
    preset = Preset("p", ("small",), (1,), (1,), new_tokens=256)
    assert [preset.new_tokens_of(e) for e in ("naive", "transformers-nocache", "dense")] == [64, 64, 256]


def test_slow_cases_have_fewer_turns_spread_over_all(stage: Stage) -> None:
    """A run of the one takes 0.55 s, of the other 0.055, and about 2.2 s of runs are timed, at least 3."""
    stage.slower = {"one": 1.0, "two": 0.1}
    report = stage.run(batches=(1,), repeats=7, timed_s=2.2)
    assert [len(r.generate_s.samples) for r in report.results if r.generate_s] == [4, 7]
    timed = [name for name, _, new in stage.clock.calls[6:] if new == 5]
    assert [i for i, name in enumerate(timed) if name == "one"] == [1, 4, 7, 9]
    assert timed.count("two") == 7
    stage.path.unlink()
    report = stage.run(batches=(1,), repeats=7, timed_s=0.1)
    assert [len(r.generate_s.samples) for r in report.results if r.generate_s] == [3, 3]


def test_turns_are_spread() -> None:
    for repeats, turns in ((3, 7), (7, 7), (1, 5), (4, 9)):
        due = [runs_due(turn, repeats, turns) for turn in range(-1, turns)]
        taken = [turn for turn in range(turns) if due[turn + 1] > due[turn]]
        assert len(taken) == repeats
        assert taken[-1] == turns - 1
        gaps = [b - a for a, b in itertools.pairwise(taken)]
        assert not gaps or max(gaps) - min(gaps) <= 1


def test_others_have_batches_of_their_own(stage: Stage) -> None:
    report = stage.run(batches=(1, 2, 4), other_batches=None)
    preset = Preset("p", ("m",), (1, 2, 4), (3,), 5, engines=("dense", "transformers"), other_batches=(2, 8))
    assert [(c.engine, c.batch) for c in preset.cases()] == [
        ("dense", 1), ("dense", 2), ("transformers", 2), ("dense", 4), ("transformers", 8),
    ]  # fmt: skip
    assert [c.batch for c in preset.changed(batches=(1, 2)).cases()] == [1, 1, 2, 2]  # asked for: everyone's
    assert len(report.results) == 6


def test_one_that_cannot_be_made_fails_and_the_others_go_on(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: object, limits: Limits) -> None:
        raise ValueError("a cache of 8 rows takes 9.0 GB\nand more")

    monkeypatch.setitem(OTHERS, "two", broken)  # type: ignore[arg-type, return-value]
    report = stage.run()
    reasons = {(r.status, r.reason) for r in report.find(engine="two")}
    assert reasons == {("failed", "ValueError: a cache of 8 rows takes 9.0 GB")}
    assert {r.status for r in report.find(engine="one")} == {"ok"}


@dataclass
class Counting(Stub):
    """A stub with the counters of an engine that replays graphs; its warm-up captures three and takes two seconds."""

    stats: GraphStats = field(default_factory=GraphStats)

    def warm_up(self) -> None:
        self.clock.now += 2.0
        self.stats.captures, self.stats.capture_s, self.stats.graph_bytes = 3, 1.5, 10**6

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        rows = super().generate(prompts, new_tokens)
        self.stats.decode_steps += new_tokens - 1
        self.stats.replayed_steps += max(0, new_tokens - 2)
        self.stats.replayed_rows += 4 * max(0, new_tokens - 2)
        self.stats.padding_rows += (4 - len(prompts)) * max(0, new_tokens - 2)
        self.stats.fallbacks["a reason"] += new_tokens > 1
        return rows


def test_counters_of_the_timed_runs_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Counting("one", stage.clock, lambda call: None)
    monkeypatch.setitem(OTHERS, "one", lambda model, limits: stub)
    report = stage.run(batches=(1, 2), engines=("one",))
    for r in report.results:
        assert r.warm_up_s == pytest.approx(2.0)
        assert r.graphs is not None
        assert (r.graphs.captures, r.graphs.capture_s, r.graphs.bytes) == (3, 1.5, 10**6)
        assert (r.graphs.steps, r.graphs.replayed) == (3 * 4, 3 * 3)  # three runs of five tokens, three of one
        assert r.graphs.hit_rate == 0.75
        assert r.graphs.padding_share == (4 - r.case.batch) / 4
        assert r.graphs.fallbacks == {"a reason": 3}
    assert Report.load(stage.path) == report


def test_an_engine_that_captures_nothing_says_why(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As engines with graphs on a CPU."""
    stub = Counting("one", stage.clock, lambda call: None)
    monkeypatch.setattr(Counting, "warm_up", lambda self: None)
    monkeypatch.setattr(Counting, "generate", count_eager_steps)
    monkeypatch.setitem(OTHERS, "one", lambda model, limits: stub)
    (r,) = stage.run(batches=(1,), engines=("one",)).results
    assert r.graphs is not None
    assert (r.graphs.captures, r.graphs.steps, r.graphs.replayed) == (0, 3 * 4, 0)
    assert r.graphs.fallbacks == {"a CPU records no steps": 3 * 4}
    assert any(line.endswith("  replayed 0.0%; a CPU records no steps") for line in stage.said)


def count_eager_steps(stub: Counting, prompts: Tensor, new_tokens: int) -> list[list[int]]:
    stub.stats.decode_steps += new_tokens - 1
    stub.stats.fallbacks["a CPU records no steps"] += new_tokens - 1
    return Stub.generate(stub, prompts, new_tokens)


def test_what_is_compiled_within_the_timed_runs_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's graphs and Triton's kernels, in timed runs alone; and the seconds of those before."""
    compiled = {"graphs": 0, "seconds": 0.0}
    monkeypatch.setattr(nanobench.core.benchmark, "torch_graphs", lambda: compiled["graphs"])
    monkeypatch.setattr(nanobench.core.benchmark, "torch_seconds", lambda: compiled["seconds"])

    def compile_at_times(call: Call) -> None:
        if call[0] == "one" and call[2] == 5:
            compiled["graphs"] += 1
            compiled["seconds"] += 0.5

    stage.before = compile_at_times
    report = stage.run(batches=(1,))
    found = {r.case.engine: (r.compiles, r.compile_s) for r in report.results}
    assert found == {"one": (3, 1.0), "two": (0, 0.0)}
    assert any("compiled 3 times within the timed runs: the times are not valid" in line for line in stage.said)


def test_a_batch_beyond_the_memory_is_over_budget_before_it_runs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows and a spare one fit, four and a spare one do not; what is free is not given to caches whole."""
    row = DenseCache.bytes(TINY, 1, 8, torch.float32) // 2
    monkeypatch.setattr(nanobench.core.benchmark, "free_memory", lambda device: int(4.9 * row / MEMORY_SHARE))
    status = stage.status(stage.run())
    assert [status["one", b] for b in (1, 2, 4)] == ["ok", "ok", "over budget"]
    (last,) = Report.load(stage.path).find(engine="one", batch=4)
    assert last.reason.startswith("its keys and values alone take ")


def test_what_is_left_is_told_before_and_after(stage: Stage) -> None:
    steps: list[tuple[int, int, str]] = []
    preset = Preset("stub", ("tiny",), (1, 2), (3,), new_tokens=5, engines=("one", "two"), repeats=3)
    benchmark = Benchmark(preset, "cpu", stage.path, stage.said.append, lambda *step: steps.append(step))
    assert benchmark.expect() == "4 cases left"
    benchmark.run()
    ((done, total, left),) = steps
    assert (done, total) == (2, 4)
    assert left.startswith("2 cases left, about ")
    # Two warm-up runs and the first one, three timed, and what is beside them: a case after the first batch's like.
    assert float(left.split("about ")[1].split(" s")[0]) == pytest.approx(2 * (6 * 0.55 + OVERHEAD_S), abs=1)


def test_a_dry_run_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from typer.testing import CliRunner

    from nanobench.__main__ import app

    out = tmp_path / "x.json"
    arguments = ["run", "--preset", "laptop", "--batches", "1,2", "--out", str(out), "--device", "cpu", "--dry-run"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    assert " cases left" in done.output
    assert not out.exists()
    for wrong in (["--engines", "nobody"], ["--batches", "0"], ["--batches", "one"], ["--preset", "none"]):
        assert CliRunner().invoke(app, ["run", *wrong, "--out", str(out), "--dry-run"]).exit_code == 2, wrong


def test_kernels_and_the_calls_that_launch_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of three kernels is one call; copies, fills and waits are neither."""
    from torch.autograd import DeviceType

    host = ("cudaGraphLaunch", "cuLaunchKernelEx", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize")
    device = ("attend", "write", "gemm", "add", "norm", "Memcpy DtoH", "Memset (Device)")
    events = [SimpleNamespace(name=name, device_type=DeviceType.CPU) for name in host]
    events += [SimpleNamespace(name=name, device_type=DeviceType.CUDA) for name in device]
    ran: list[int] = []

    @contextmanager
    def profile(activities: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(events=lambda: events)

    monkeypatch.setattr(torch.profiler, "profile", profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert launches(lambda: ran.append(1)) == (5, 3)
    assert ran == [1]
