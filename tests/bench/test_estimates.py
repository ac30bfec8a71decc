"""Estimates while a run goes on: an earlier file's seconds, at the pace of this run."""

from __future__ import annotations

import pytest

from nanobench.core import benchmark, estimate
from nanobench.core.presets import Preset
from tests.bench import test_benchmark
from tests.bench.samples import MACHINE, failed, report, result, saved

stage = test_benchmark.stage  # a benchmark of stubs with a clock of its own
PRESET = Preset("p", ("random:gpt2",), (1, 8), (128,), new_tokens=17, engines=("naive", "dense"), repeats=5)
GUIDE = [result(engine, batch, 0.002) for engine in PRESET.engines for batch in PRESET.batches]  # 0.036 s a run
CASE_S = 8 * 0.036 + estimate.OVERHEAD_S


def test_what_is_left_goes_at_the_pace_of_this_run() -> None:
    done = GUIDE[:1]  # the guide counts, not the little that was measured here
    _, seconds, _ = estimate.plan(PRESET, done, GUIDE, {GUIDE[1].case: 0.5}, pace=3.0)
    assert seconds == pytest.approx(3 * (3 * CASE_S - 0.5), rel=0.02)


def test_cases_that_will_be_over_their_budget_take_no_time() -> None:
    """By the pace, or since a smaller batch was."""
    assert estimate.plan(PRESET.changed(case_budget_s=0.1), (), GUIDE, pace=3.0)[1] == 0.0
    _, seconds, _ = estimate.plan(PRESET, [failed("naive", 1, "over budget", "")], GUIDE)
    assert seconds == pytest.approx(2 * CASE_S, rel=0.02)


def test_a_guide_is_of_the_same_kind_of_device(tmp_path: test_benchmark.Path) -> None:
    saved(report(*GUIDE, device="Other GPU"), tmp_path / "other.json")
    assert estimate.earlier_results(MACHINE, PRESET, tmp_path)[0] == "other.json"
    saved(report(*GUIDE[:1]), tmp_path / "same.json")
    assert estimate.earlier_results(MACHINE, PRESET, tmp_path)[0] == "same.json"
    assert estimate.earlier_results(MACHINE.model_copy(update={"kind": "cpu"}), PRESET, tmp_path) == ("", ())


@pytest.mark.parametrize("slower", [0.4, 3.0])
def test_a_quarter_of_a_run_tells_how_long_it_takes(stage: test_benchmark.Stage, slower: float) -> None:
    """On a machine unlike the guide's."""
    stage.run()
    stage.pace = {"one": slower, "two": slower}
    stage.now, told = 0.0, list[tuple[float, float]]()
    path = stage.path.with_name("again.json")
    made = benchmark.Benchmark(
        test_benchmark.PRESET, "cpu", path, lambda line: None, lambda share, left: told.append((stage.now, share))
    )
    made.run()
    assert told
    for now, share in told:
        if now >= stage.now / 4:
            assert stage.now / 1.5 < now / share < stage.now * 1.5
