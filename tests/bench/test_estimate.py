"""How long a run will take: by what was measured before, and never by less than is known."""

from __future__ import annotations

import pytest
import torch

from nanobench.core import benchmark, estimate
from nanobench.core.presets import Preset
from nanobench.core.records import Case
from nanoinfer.model.config import PRESETS as SHAPES
from tests.bench import test_benchmark
from tests.bench.samples import MACHINE, failed, report, result, saved

PRESET = Preset("p", ("random:gpt2",), (1, 8, 64), (128,), new_tokens=17, engines=("naive", "dense"), repeats=5)


def case(engine: str, batch: int, new_tokens: int = 17) -> Case:
    return Case(model="random:gpt2", engine=engine, batch=batch, prompt_tokens=128, new_tokens=new_tokens)


def test_a_run_by_the_two_largest_smaller_batches() -> None:
    """18 steps each: 0.036, 0.054 and, by a line, 0.054 + 56/7 * 0.018."""
    known = [result("dense", 1, 0.002), result("dense", 8, 0.003)]
    assert estimate.run_seconds(case("dense", 64), known) == pytest.approx(0.198, rel=0.05)
    assert estimate.run_seconds(case("dense", 8), known) == pytest.approx(0.036, rel=0.02)
    assert estimate.run_seconds(case("dense", 1), known) == 0.0
    full = [*known, failed("dense", 16, "out of memory", "full")]
    assert estimate.run_seconds(case("dense", 64), full) == float("inf")


def test_a_case_is_warm_up_and_timed_runs() -> None:
    known = [result("dense", 8, 0.003)]  # 0.054 s a run
    for engine, new_tokens, run_s in (("dense", 17, 0.054), ("dense", 34, 0.108), ("naive", 17, 0.054)):  # a guess
        seconds = estimate.case_seconds(case(engine, 8, new_tokens), PRESET, known)
        assert seconds == pytest.approx((1 + 2 + 5) * run_s + estimate.OVERHEAD_S, rel=0.02)
    assert estimate.case_seconds(case("dense", 8), PRESET, []) is None


def test_what_is_left_in_words() -> None:
    assert estimate.in_words(6, 0.0, 6) == "6 cases left"
    assert estimate.in_words(6, 80.4, 2) == "6 cases left, about 80 s, and 2 of which nothing is known yet"


def test_batches_that_fit() -> None:
    """Our engines hold their caches all the time, beside whichever runs; naive has none, and peers while they run."""
    shape = SHAPES["gpt2"]
    preset = Preset("p", ("m",), (1, 8, 64, 512), (128,), 128, engines=("naive", "transformers"))
    ours = preset.changed(engines=("dense", "paged-graph-unfused", *preset.engines))
    need = 65 * 256 * shape.kv_numbers * 2
    for tried, free, batch in (
        (preset, None, 512), (preset, int(1.01 * need / estimate.MEMORY_SHARE), 64),
        (ours, int(1.01 * need / estimate.MEMORY_SHARE), 8), (ours, int(3.01 * need / estimate.MEMORY_SHARE), 64),
        (preset, 1, 1),  # the smallest is tried, and says itself what it lacks
    ):  # fmt: skip
        assert estimate.largest_batch(shape, tried, torch.bfloat16, free) == batch


# While a run goes on: an earlier file's seconds, at the pace of this run

stage = test_benchmark.stage  # a benchmark of stubs with a clock of its own
SHORT = PRESET.changed(batches=(1, 8))
GUIDE = [result(engine, batch, 0.002) for engine in SHORT.engines for batch in SHORT.batches]  # 0.036 s a run


def test_a_case_that_will_be_over_its_budget_takes_no_time() -> None:
    assert estimate.case_seconds(case("dense", 8), SHORT.changed(case_budget_s=0.03), GUIDE) == 0.0


def test_a_guide_is_of_the_same_kind_of_device(tmp_path: test_benchmark.Path) -> None:
    saved(report(*GUIDE, device="Other GPU"), tmp_path / "other.json")
    assert estimate.earlier_results(MACHINE, SHORT, tmp_path)[0] == "other.json"
    saved(report(*GUIDE[:1]), tmp_path / "same.json")
    assert estimate.earlier_results(MACHINE, SHORT, tmp_path)[0] == "same.json"
    assert estimate.earlier_results(MACHINE.model_copy(update={"kind": "cpu"}), SHORT, tmp_path) == ("", ())


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
