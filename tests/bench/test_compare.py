"""Two runs compared: what agrees, what does not, and what may not be compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nanobench.core.records import Report, Spread
from nanobench.report.compare import Ratio, allowed, compare
from nanobench.report.intervals import interval
from nanobench.report.intervals import ratios as within
from tests.bench.samples import failed, report, result, saved

Compared = Callable[[Report, Report], tuple[int, str]]  # exit code and output
SAME = report(result("naive", 1, 0.002), result("dense", 1, 0.002))


@pytest.fixture
def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compared:
    def run(first: Report, second: Report) -> tuple[int, str]:
        code = compare(saved(first, tmp_path / "a.json"), saved(second, tmp_path / "b.json"))
        return code, capsys.readouterr().out

    return run


def test_a_run_agrees_with_one_alike(compared: Compared) -> None:
    again = report(*(result(r.case.engine, r.case.batch, 0.002, seed=1) for r in SAME.results))
    code, out = compared(SAME, again)
    assert code == 0
    assert "4 of 4 medians agree within the larger of the first run's 10-90% range and 3%; 0 differ" in out
    assert out.count(" agrees\n") == 4


def test_a_slower_run_differs_and_the_worst_is_named(compared: Compared) -> None:
    code, out = compared(SAME, report(result("naive", 1, 0.002), result("dense", 1, 0.0022)))
    assert code == 1
    assert "2 of 4 medians agree" in out
    (line,) = (line for line in out.splitlines() if "dense" in line and "tok/s" in line and "±" in line)
    assert re.search(r" 0\.9[01]\d? .* differs beyond the spread$", line)
    worst = r"the worst: random:gpt2 B=1 prompt 128 dense .* \d+\.\d% apart where \d\.\d% is allowed"
    assert re.fullmatch(worst, out.splitlines()[-1])


@pytest.mark.parametrize(("p10", "p90", "part"), [(99.0, 110.0, 0.11), (99.5, 100.5, 0.03)])
def test_the_larger_of_the_ranges_width_and_3_percent_is_allowed(p10: float, p90: float, part: float) -> None:
    assert allowed(Spread(median=100.0, p10=p10, p90=p90, samples=())) == pytest.approx(part)
    for factor, agree in ((1 - 0.9 * part, True), (1 - 1.1 * part, False), (1 + 0.9 * part, True), (1.2, False)):
        assert Ratio(SAME.results[0].case, "tok/s", factor, 0.9, 1.1, part).agree is agree, factor


def test_intervals_hold_the_ratio_and_are_seeded() -> None:
    a, b = result("dense", 8, 0.002), result("dense", 8, 0.001, seed=5)
    low, high = interval(b, a, "tok/s")
    assert 1.9 < low < (b.tokens_per_s or 0) / (a.tokens_per_s or 1) < high < 2.1
    assert interval(b, a, "tok/s") == (low, high)


def test_a_case_that_ends_otherwise_differs_and_one_of_a_single_file_is_told(compared: Compared) -> None:
    code, out = compared(SAME, report(SAME.results[0], failed("dense", 1, "out of memory", "full")))
    assert code == 1
    assert "ok in the first, out of memory in the second" in out
    code, out = compared(SAME, report(SAME.results[0]))
    assert code == 0
    assert "in the first file alone: dense at B = 1" in out


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (report(*SAME.results, dtype="float32"), "dtype must be the same"),
        (report(result("naive", 1, 0.002, model="small")), "model must be the same"),
        (report(result("naive", 2, 0.002)), "no measured case in common"),
        (report(result("naive", 2, 0.002), device="Another"), "no ratio can be compared"),
    ],
)
def test_what_may_not_be_compared(compared: Compared, other: Report, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        compared(SAME, other)


def test_results_of_another_device(compared: Compared) -> None:
    """Times ten times as long are no contradiction; an engine that is faster here and slower there is."""
    steps = {("naive", 1): 0.02, ("dense", 1): 0.01, ("naive", 8): 0.04, ("dense", 8): 0.02}
    there = report(*(result(*case, step) for case, step in steps.items()))
    longer = [result(*case, 10 * step, model="small", prompt=32) for case, step in steps.items()]
    code, out = compared(there, report(*longer, device="Mine", dtype="float32"))
    assert code == 0
    assert "2 of 2 results hold here" in out
    assert "note: model random:gpt2 there, small here" in out
    assert "tok/s" not in out  # nothing absolute
    steps["naive", 1] = steps["dense", 1]
    code, out = compared(there, report(*(result(*case, step) for case, step in steps.items()), device="Mine"))
    assert code == 1
    assert "does not hold here: faster there, even here" in out


def test_ratios_within_one_file() -> None:
    made = report(result("dense", 1, 0.004), result("paged", 1, 0.002), result("dense", 8, 0.004),
                  failed("paged", 8, "failed", "no"), result("transformers", 8, 0.008))  # fmt: skip
    faster, slower = within(made, "dense")
    assert re.fullmatch(r"random:gpt2 B=1 +prompt 128 +paged +(2\.0|1\.9)\d \[.*\] +faster than dense", faster)
    assert re.fullmatch(r"random:gpt2 B=8 +prompt 128 +transformers +0\.(50|49)\d \[.*\] +slower than dense", slower)
    assert list(within(made)) == [faster, slower]  # over the first one
    with pytest.raises(ValueError, match="engine must be one of the file's, dense, paged, transformers, not 'naive'"):
        list(within(made, "naive"))
