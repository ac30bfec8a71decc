"""How long a run will take: by what was measured before, and never by less than is known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nanobench.core.estimate import (
    MEMORY_SHARE,
    OVERHEAD_S,
    case_seconds,
    earlier_results,
    in_words,
    largest_batch,
    plan,
    run_seconds,
)
from nanobench.core.presets import PRESETS, Preset
from nanobench.core.records import Case
from nanoinfer.cache.dense import DenseCache
from nanoinfer.model.config import PRESETS as SHAPES
from tests.bench.samples import failed, ladder, report, result, saved

PRESET = Preset("p", ("random:gpt2",), (1, 8, 64), (128,), new_tokens=17, engines=("naive", "dense"), repeats=5)


def case(engine: str, batch: int, new_tokens: int = 17) -> Case:
    return Case(model="random:gpt2", engine=engine, batch=batch, prompt_tokens=128, new_tokens=new_tokens)


def test_a_run_by_the_two_largest_smaller_batches() -> None:
    """18 steps each: 0.036, 0.054 and, by a line, 0.054 + 56/7 * 0.018."""
    known = [result("dense", 1, 0.002), result("dense", 8, 0.003)]
    assert run_seconds(case("dense", 64), known) == pytest.approx(0.198, rel=0.05)
    assert run_seconds(case("dense", 8), known) == pytest.approx(0.036, rel=0.02)
    assert run_seconds(case("dense", 1), known) == 0.0
    full = [*known, failed("dense", 16, "out of memory", "full")]
    assert run_seconds(case("dense", 64), full) == float("inf")


def test_a_case_is_warm_up_and_timed_runs() -> None:
    known = [result("dense", 8, 0.003)]  # 0.054 s a run
    assert case_seconds(case("dense", 8), PRESET, known) == pytest.approx((1 + 2 + 5) * 0.054 + OVERHEAD_S, rel=0.02)
    longer = case_seconds(case("dense", 8, 34), PRESET, known)
    assert longer == pytest.approx((1 + 2 + 5) * 0.108 + OVERHEAD_S, rel=0.02)
    assert case_seconds(case("naive", 8), PRESET, known) == case_seconds(case("dense", 8), PRESET, known)  # a guess
    assert case_seconds(case("dense", 8), PRESET, []) is None
    assert case_seconds(case("dense", 8), PRESET.changed(case_budget_s=0.01), known) == 0.0  # it is not run


def test_slow_cases_are_timed_less_often() -> None:
    preset = Preset("p", ("m",), (1,), (1,), 2, repeats=9, timed_s=1.0)
    assert [preset.repeats_of(s) for s in (0.0, 0.01, 0.12, 0.25, 0.4, 50.0)] == [9, 9, 8, 4, 3, 3]
    assert preset.changed(repeats=2).repeats_of(50.0) == 2  # asked for: as many as that, however long


def test_what_is_left() -> None:
    done = (result("naive", 1, 0.002), result("dense", 1, 0.002))
    cases, seconds, unknown = plan(PRESET, done, ())
    assert (cases, unknown) == (4, 0)
    assert seconds == pytest.approx(4 * (8 * 0.036 + OVERHEAD_S), rel=0.02)
    assert plan(PRESET, (), ())[::2] == (6, 6)
    assert plan(PRESET, tuple(result(c.engine, c.batch, 1.0) for c in PRESET.cases()), ())[0] == 0
    assert in_words(6, 0.0, 6) == "6 cases left"
    assert in_words(6, 80.4, 0) == "6 cases left, about 80 s"
    assert in_words(6, 80.4, 2) == "6 cases left, about 80 s, and 2 of which nothing is known yet"


def test_an_earlier_file_of_the_same_device_is_a_guide(tmp_path: Path) -> None:
    saved(ladder(), tmp_path / "a.json")
    saved(report(result("dense", 1, 0.1), device="Mine"), tmp_path / "b.json")
    (tmp_path / "c.json").write_text("{}")
    gpu = PRESETS["gpu"]
    assert earlier_results("Test GPU", gpu, tmp_path) == ("a.json", ladder().results)
    assert earlier_results("Mine", gpu, tmp_path)[0] == "b.json"
    assert earlier_results("Mine", gpu.changed(models=("small",)), tmp_path) == ("", ())
    assert earlier_results("Another", gpu, tmp_path) == ("", ())


def test_the_preset_s_own_file_is_the_best_guide(tmp_path: Path) -> None:
    """However many results another file has, and whatever it is called."""
    own = PRESETS["ratios"]
    few = [result(c.engine, c.batch, 1.0).model_copy(update={"case": c}) for c in own.cases()[:2]]
    saved(report(*few), tmp_path / "z.json")
    saved(ladder(), tmp_path / "a.json")
    assert len(ladder().results) > len(few)
    assert earlier_results("Test GPU", own, tmp_path)[0] == "z.json"


def test_batches_that_fit() -> None:
    """Our engines hold their caches all the time, beside whoever runs; naive has none, and peers while they run."""
    shape = SHAPES["gpt2"]
    preset = Preset("p", ("m",), (1, 8, 64, 512), (128,), 128, engines=("naive", "transformers"))
    assert largest_batch(shape, preset, torch.bfloat16, None) == 512
    need = DenseCache.bytes(shape, 64, 256, torch.bfloat16)
    assert largest_batch(shape, preset, torch.bfloat16, int(1.01 * need / MEMORY_SHARE)) == 64
    for engines in (("dense", "paged"), ("dense-graph", "paged-graph-unfused")):
        ours = preset.changed(engines=(*engines, *preset.engines))
        assert largest_batch(shape, ours, torch.bfloat16, int(1.01 * need / MEMORY_SHARE)) == 8
        assert largest_batch(shape, ours, torch.bfloat16, int(3.01 * need / MEMORY_SHARE)) == 64
    assert largest_batch(shape, preset, torch.bfloat16, 1) == 1  # the smallest is tried, and says itself what it lacks


def test_the_gpu_preset_takes_about_four_minutes_where_the_book_was_measured() -> None:
    preset = PRESETS["gpu"]
    name, known = earlier_results("NVIDIA H200", preset, Path(__file__).parents[2] / "bench" / "results")
    assert name
    assert plan(preset, (), known)[1] < 270
