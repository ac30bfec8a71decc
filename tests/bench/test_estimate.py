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
    for engine, new_tokens, run_s in (("dense", 17, 0.054), ("dense", 34, 0.108), ("naive", 17, 0.054)):  # a guess
        seconds = case_seconds(case(engine, 8, new_tokens), PRESET, known)
        assert seconds == pytest.approx((1 + 2 + 5) * run_s + OVERHEAD_S, rel=0.02)
    assert case_seconds(case("dense", 8), PRESET, []) is None
    assert case_seconds(case("dense", 8), PRESET.changed(case_budget_s=0.01), known) == 0.0  # it is not run


def test_what_is_left() -> None:
    done = (result("naive", 1, 0.002), result("dense", 1, 0.002))
    cases, seconds, unknown = plan(PRESET, done, ())
    assert (cases, unknown) == (4, 0)
    assert seconds == pytest.approx(4 * (8 * 0.036 + OVERHEAD_S), rel=0.02)
    assert plan(PRESET, (), ())[::2] == (6, 6)
    assert in_words(6, 0.0, 6) == "6 cases left"
    assert in_words(6, 80.4, 0) == "6 cases left, about 80 s"
    assert in_words(6, 80.4, 2) == "6 cases left, about 80 s, and 2 of which nothing is known yet"


def test_an_earlier_file_of_the_same_device_is_a_guide(tmp_path: Path) -> None:
    """That of the preset's own cases before one with more results."""
    gpu, ratios = PRESETS["gpu"], PRESETS["ratios"]
    saved(ladder(), tmp_path / "a.json")
    saved(report(result("dense", 1, 0.1), device="Mine"), tmp_path / "b.json")
    (tmp_path / "c.json").write_text("{}")
    assert earlier_results("Test GPU", gpu, tmp_path) == ("a.json", ladder().results)
    assert earlier_results("Mine", gpu, tmp_path)[0] == "b.json"
    assert earlier_results("Mine", gpu.changed(models=("small",)), tmp_path) == ("", ())
    assert earlier_results("Another", gpu, tmp_path) == ("", ())
    few = [result(c.engine, c.batch, 1.0).model_copy(update={"case": c}) for c in ratios.cases()[:2]]
    saved(report(*few), tmp_path / "z.json")
    assert earlier_results("Test GPU", ratios, tmp_path)[0] == "z.json"


def test_batches_that_fit() -> None:
    """Our engines hold their caches all the time, beside whichever runs; naive has none, and peers while they run."""
    shape = SHAPES["gpt2"]
    preset = Preset("p", ("m",), (1, 8, 64, 512), (128,), 128, engines=("naive", "transformers"))
    ours = preset.changed(engines=("dense", "paged-graph-unfused", *preset.engines))
    need = DenseCache.bytes(shape, 64, 256, torch.bfloat16)
    for tried, free, batch in (
        (preset, None, 512), (preset, int(1.01 * need / MEMORY_SHARE), 64),
        (ours, int(1.01 * need / MEMORY_SHARE), 8), (ours, int(3.01 * need / MEMORY_SHARE), 64),
        (preset, 1, 1),  # the smallest is tried, and says itself what it lacks
    ):  # fmt: skip
        assert largest_batch(shape, tried, torch.bfloat16, free) == batch
