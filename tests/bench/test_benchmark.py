"""The benchmark's loop with systems made of numbers: what is recorded, what is left to do, what is refused.

No clock is read: the stubs' generations move a clock of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from nanobench.__main__ import app
from nanobench.core import benchmark, case_runner, machine
from nanobench.core.estimate import MEMORY_SHARE
from nanobench.core.presets import Preset, limit_seconds
from nanobench.core.records import Report
from nanobench.systems import OTHERS
from nanobench.systems.base import Missing, System
from nanoinfer.engine.stats import GraphStats
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import random_model

TINY = ModelConfig(vocab_size=64, n_positions=128, n_embd=16, n_layer=1, n_head=2)
PRESET = Preset("stub", ("tiny",), (1, 2, 4), (3,), new_tokens=5, engines=("one", "two"), repeats=3)
WARM_UP = 6  # calls of both systems before the first timed one
TIMED = 12  # of both systems, in three turns: each a generation and its first token alone
Call = tuple[str, int, int]  # engine, rows, new tokens


@dataclass
class Stage:
    """A benchmark of stubs, the time that passes only where one works, and who worked, in order."""

    path: Path
    patch: pytest.MonkeyPatch
    now: float = 0.0
    calls: list[Call] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    before: Callable[[Call], object] = lambda call: None
    pace: dict[str, float] = field(default_factory=dict)

    def perf_counter(self) -> float:
        return self.now

    def run(self, **changes: object) -> Report:
        return benchmark.Benchmark(PRESET.changed(**changes), "cpu", self.path, self.said.append).run()

    def interrupt_after(self, calls: int, **changes: object) -> Report:
        """Ctrl-C once so many calls are done; what the file holds then."""

        def interrupt(call: Call) -> None:
            if len(self.calls) == calls:
                raise KeyboardInterrupt

        self.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            self.run(**changes)
        self.before, self.calls = (lambda call: None), []
        return Report.load(self.path)

    def use(self, name: str, make: Callable[..., System]) -> None:
        self.patch.setitem(OTHERS, name, lambda model, limits: make())


@dataclass
class Stub:
    """A step takes a hundredth of a second for all rows and a tenth of one more for each of them."""

    name: str
    stage: Stage

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        call = (self.name, len(prompts), new_tokens)
        self.stage.before(call)
        self.stage.calls.append(call)
        self.stage.now += self.stage.pace.get(self.name, 1.0) * new_tokens * (0.01 + 0.1 * len(prompts))
        return [[1] * new_tokens for _ in prompts]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(tmp_path / "stub.json", monkeypatch)
    model = random_model(TINY, 0, device=torch.device("cpu"))
    for module in (benchmark, case_runner):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(case_runner, "gc", SimpleNamespace(collect=lambda: 0))  # of a test's whole process: slow
    monkeypatch.setattr(benchmark, "copy_bandwidth", lambda device: 1e9)
    monkeypatch.setattr(benchmark, "import_seconds", lambda: 1.0)
    monkeypatch.setattr(machine, "commit", lambda: "0123456789ab")
    monkeypatch.setattr(benchmark, "model_config", lambda name: TINY)
    monkeypatch.setattr(benchmark, "load_model", lambda *a, **k: model)
    for stub in (Stub("one", made), Stub("two", made)):
        made.use(stub.name, lambda stub=stub: stub)
    return made


def statuses(report: Report, engine: str) -> list[str]:
    return [r.status for r in report.find(engine=engine)]


def test_what_is_measured(stage: Stage) -> None:
    report = stage.run()
    assert statuses(report, "one") == statuses(report, "two") == ["ok"] * 3
    for r in report.results:
        step = 0.01 + 0.1 * r.case.batch
        assert r.generate_s.samples == pytest.approx([5 * step] * 3)
        assert r.ttft_s.samples == pytest.approx([step] * 3)
        assert r.tokens_per_s == pytest.approx(r.case.batch / step)
        assert r.floor_share == pytest.approx(limit_seconds(TINY, 4, r.case.batch, 5.5, 1e9) / step)
        assert r.tokens == 5 * r.case.batch
    assert Report.load(stage.path) == report
    assert any("bandwidth limit" in line for line in stage.said)


def test_an_interrupted_run_goes_on_with_the_turns_it_has(stage: Stage) -> None:
    """Ctrl-C between the two calls of a turn, with the second batch half done, twice: each time one turn is lost."""
    for calls, turns in ((WARM_UP + TIMED + WARM_UP + 7, {"one": 2, "two": 1}), (WARM_UP + 3, {"one": 2, "two": 2})):
        left = stage.interrupt_after(calls, batches=(1, 2))
        assert [(r.case.batch, r.status) for r in left.results] == [(1, "ok"), (1, "ok")]
        for times in ("generate_s", "ttft_s"):
            assert {t.case.engine: len(getattr(t, times)) for t in left.unfinished.turns} == turns
    report = stage.run(batches=(1, 2))
    assert f"going on with {stage.path}: 2 cases and 4 timed runs of 2 more" in stage.said
    assert [name for name, _, _ in stage.calls[WARM_UP:]] == ["one", "one", "two", "two"]
    assert {rows for _, rows, _ in stage.calls} == {2}  # what was measured is not measured again
    assert [len(r.generate_s.samples) for r in report.results if r.generate_s] == [3] * 4
    assert report.unfinished is None
    stage.calls = []
    assert stage.run(batches=(1, 2)) == report == Report.load(stage.path)
    assert stage.calls == []


def test_turns_of_other_settings_are_not_mixed(stage: Stage) -> None:
    stage.interrupt_after(WARM_UP + 7, batches=(1,))
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
    assert statuses(report, "one") == statuses(report, "two") == ["ok", "ok", "over budget", "over budget"]
    assert not {rows for _, rows, _ in stage.calls} & {4, 8}
    assert report.find(engine="one", batch=4)[0].reason == "about 2.05 s expected, the budget is 2 s a run"
    assert "a smaller batch was over it" in report.find(engine="one", batch=8)[0].reason


def test_a_batch_beyond_the_memory_is_over_budget_before_it_runs(stage: Stage) -> None:
    """Two rows and a spare one fit, four and a spare one do not; what is free is not given to caches whole."""
    row = 8 * TINY.kv_numbers * 4
    stage.patch.setattr(benchmark, "free_memory", lambda device: int(4.9 * row / MEMORY_SHARE))
    report = stage.run()
    assert statuses(report, "one") == ["ok", "ok", "over budget"]
    assert report.find(engine="one", batch=4)[0].reason.startswith("its keys and values alone take ")


MEMORY, ERROR = torch.OutOfMemoryError("no"), RuntimeError("no such kernel\nand more")


@pytest.mark.parametrize(
    "when, error, expected, reason",
    [
        ("made", Missing("not installed"), ["missing"] * 3, "not installed"),
        ("made", ERROR, ["failed"] * 3, "RuntimeError: no such kernel"),
        ("warm-up", ERROR, ["ok", "failed", "ok"], "RuntimeError: no such kernel"),
        ("timed", MEMORY, ["ok", "out of memory", "over budget"], "the device's memory was full"),
    ],
)
def test_a_failure_is_recorded_and_the_other_system_goes_on(
    stage: Stage, when: str, error: Exception, expected: list[str], reason: str
) -> None:
    def fail(call: Call = ("one", 2, 5)) -> System:
        if call[:2] == ("one", 2) and (when != "timed" or stage.calls.count(call) > 2):
            raise error
        return Stub("one", stage)

    if when == "made":
        stage.use("one", fail)
    else:
        stage.before = fail
    report = stage.run()
    assert statuses(report, "one") == expected
    assert statuses(report, "two") == ["ok"] * 3
    assert report.find(engine="one", batch=2)[0].reason == reason
    assert report.unfinished is None


def test_tokens_are_recounted(stage: Stage) -> None:
    """An engine that gives fewer tokens than it was asked for is no fast engine."""
    lazy = Stub("one", stage)
    stage.patch.setattr(lazy, "generate", lambda prompts, new_tokens: [[1] * (new_tokens - 1) for _ in prompts])
    stage.use("one", lambda: lazy)
    with pytest.raises(AssertionError, match="one gave 4 tokens, not 5 a row"):
        stage.run()


def test_slow_cases_have_fewer_turns_spread_over_all(stage: Stage) -> None:
    """A run of the one takes 0.55 s, and at least 3 are timed, however few fit; the other is fast."""
    stage.pace = {"two": 0.01}
    stage.run(batches=(1,), repeats=7, timed_s=0.1)
    timed = [name for name, _, new_tokens in stage.calls[WARM_UP:] if new_tokens == 5]
    assert " ".join(timed) == "two two one two two one two two one two"


def test_cases_of_a_preset() -> None:
    """Other systems have batches of their own, unless some are asked for; without a cache fewer tokens are made."""
    engines = ("naive", "dense", "transformers")
    preset = Preset("p", ("m",), (1, 2), (3,), 256, engines=engines, other_batches=(2, 8), repeats=9, timed_s=1.0)
    assert [(c.engine, c.batch, c.new_tokens) for c in preset.cases()] == [
        ("naive", 1, 64), ("dense", 1, 256), ("naive", 2, 64), ("dense", 2, 256), ("transformers", 2, 256),
        ("transformers", 8, 256),
    ]  # fmt: skip
    assert [c.batch for c in preset.changed(batches=(1, 2)).cases()] == [1, 1, 1, 2, 2, 2]
    assert [preset.repeats_of(s) for s in (0.0, 0.12, 50.0)] == [9, 8, 3]
    assert preset.changed(repeats=2).repeats_of(50.0) == 2  # asked for: as many as that, however long


@dataclass
class Counting(Stub):
    """A stub with the counters of an engine that replays graphs; its warm-up captures three and takes two seconds."""

    stats: GraphStats = field(default_factory=GraphStats)

    def warm_up(self) -> None:
        self.stage.now += 2.0
        self.stats.captures, self.stats.capture_s, self.stats.graph_bytes = 3, 1.5, 10**6

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        self.stats.decode_steps += new_tokens - 1
        self.stats.replayed_steps += max(0, new_tokens - 2)
        self.stats.replayed_rows += 4 * max(0, new_tokens - 2)
        self.stats.padding_rows += (4 - len(prompts)) * max(0, new_tokens - 2)
        self.stats.fallbacks["a reason"] += new_tokens > 1
        return super().generate(prompts, new_tokens)


def test_counters_of_the_timed_runs_alone(stage: Stage) -> None:
    stage.use("one", lambda: Counting("one", stage))
    report = stage.run(batches=(1, 2), engines=("one",))
    for r in report.results:
        assert r.warm_up_s == pytest.approx(2.0)
        assert (r.graphs.captures, r.graphs.capture_s, r.graphs.bytes) == (3, 1.5, 10**6)
        assert (r.graphs.steps, r.graphs.replayed) == (3 * 4, 3 * 3)  # three runs of five tokens, three of one
        assert r.graphs.hit_rate == 0.75
        assert r.graphs.padding_share == (4 - r.case.batch) / 4
        assert r.graphs.fallbacks == {"a reason": 3}
    assert sum(line.endswith("  replayed 75.0%; a reason") for line in stage.said) == 2
    assert Report.load(stage.path) == report


def test_what_is_compiled_within_the_timed_runs_is_told(stage: Stage) -> None:
    """Torch's graphs and Triton's kernels, in timed runs alone; and the seconds of those before."""
    compiling: list[Call] = []
    stage.before = lambda call: compiling.append(call) if call[0] == "one" and call[2] == 5 else None
    stage.patch.setattr(benchmark, "torch_graphs", lambda: len(compiling))
    stage.patch.setattr(benchmark, "torch_seconds", lambda: 0.5 * len(compiling))
    report = stage.run(batches=(1,))
    assert {r.case.engine: (r.compiles, r.compile_s) for r in report.results} == {"one": (3, 1.0), "two": (0, 0.0)}
    assert any("compiled 3 times within the timed runs: the times are not valid" in line for line in stage.said)


def test_a_dry_run_measures_nothing(tmp_path: Path) -> None:
    common = ["run", "--device", "cpu", "--out", str(tmp_path / "x.json"), "--dry-run"]
    done = CliRunner().invoke(app, [*common, "--preset", "laptop", "--batches", "1,2"])
    assert (done.exit_code, " cases left" in done.output) == (0, True)
    wrong = "engines=nobody engines= models=nobody models= preset=none batches=0 batches=one batches=99999 budget=0"
    for each in f"{wrong} budget=nan prompt-tokens=9999 new-tokens=9999 out={__file__}/x.json".split():
        assert CliRunner().invoke(app, [*common, f"--{each}"]).exit_code == 2, each
    assert not any(tmp_path.iterdir())
