"""Two runs compared: what agrees, what does not, and what may not be compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nanobench.core.records import Report, Spread
from nanobench.report.compare import allowed, compare, ratios
from nanobench.report.cross_machine import comparisons
from nanobench.report.intervals import interval, verdict
from nanobench.report.ratios import ratios as within
from tests.bench.samples import failed, ladder, report, result, saved


def compared(tmp_path: Path, first: Report, second: Report) -> int:
    return compare(saved(first, tmp_path / "a.json"), saved(second, tmp_path / "b.json"))


def test_a_run_agrees_with_itself_and_with_one_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(tmp_path, ladder(), ladder()) == 0
    again = report(*(result(r.case.engine, r.case.batch, 0.002, seed=1) for r in SAME.results))
    assert compared(tmp_path, SAME, again) == 0
    out = capsys.readouterr().out
    assert "4 of 4 medians agree within the larger of the first run's 10-90% range and 3%; 0 differ" in out
    assert out.count(" agrees\n") == len(ladder_ratios()) + 4


SAME = report(result("naive", 1, 0.002), result("dense", 1, 0.002))


def test_a_slower_run_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(tmp_path, SAME, report(result("naive", 1, 0.002), result("dense", 1, 0.0022))) == 1
    out = capsys.readouterr().out
    assert "2 of 4 medians agree" in out
    (line,) = (line for line in out.splitlines() if "dense" in line and "tok/s" in line)
    assert "0.90" in line or "0.91" in line
    assert "differs beyond the spread" in line


def ladder_ratios() -> list[object]:
    return list(ratios(ladder(), ladder()))


@pytest.mark.parametrize(("p10", "p90", "part"), [(99.0, 110.0, 0.11), (99.5, 100.5, 0.03), (97.0, 100.0, 0.03)])
def test_the_rule(p10: float, p90: float, part: float) -> None:
    """The larger of the range's width and 3%, to both sides of the first median."""
    spread = Spread(median=100.0, p10=p10, p90=p90, samples=())
    assert allowed(spread) == pytest.approx(part)


def test_agreement_is_by_that_rule_alone() -> None:
    """A first run of which the range is 10% wide, and second ones just within and beyond it, on either side."""
    wide = result("dense", 1, 0.002)
    assert wide.generate_s is not None
    assert wide.ttft_s is not None
    whole = wide.generate_s.median
    samples = [whole * f for f in (0.95, 0.95, 0.95, 1.0, 1.05, 1.05, 1.05)]
    flat = Spread.of([wide.ttft_s.median] * 7)
    wide = wide.model_copy(update={"generate_s": Spread.of(samples), "ttft_s": flat})
    base = next(iter(ratios(report(wide), report(wide))))
    for factor, agree in ((1 - 0.9 * base.allowed, True), (1 - 1.1 * base.allowed, False), (1.09, True), (1.15, False)):
        moved = wide.model_copy(update={"tokens_per_s": (wide.tokens_per_s or 0) * factor})
        (ratio,) = (r for r in ratios(report(wide), report(moved)) if r.quantity == "tok/s")
        assert ratio.agree is agree, (factor, ratio)


def test_the_worst_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compared(tmp_path, SAME, report(result("naive", 1, 0.0021), result("dense", 1, 0.004)))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("the worst: random:gpt2 B=1 prompt 128 dense ")
    assert re.search(r"apart where \d\.\d% is allowed", last)


def test_intervals_hold_the_ratio_and_are_seeded() -> None:
    a, b = result("dense", 8, 0.002), result("dense", 8, 0.001, seed=5)
    low, high = interval(b, a, "tok/s")
    assert 1.9 < low < (b.tokens_per_s or 0) / (a.tokens_per_s or 1) < high < 2.1
    assert interval(b, a, "tok/s") == (low, high)
    low, high = interval(b, a, "TTFT")
    assert 0.48 < low <= 0.5 <= high < 0.52 or low < 0.5 < high


def test_ratios_name_their_case() -> None:
    found = list(ratios(SAME, SAME))
    assert [(r.case.engine, r.quantity) for r in found] == [
        ("naive", "tok/s"), ("naive", "TTFT"), ("dense", "tok/s"), ("dense", "TTFT"),
    ]  # fmt: skip
    assert all(r.ratio == 1 and r.low <= 1 <= r.high and r.agree for r in found)


def test_a_case_that_ends_otherwise_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = report(result("naive", 1, 0.002).model_copy(), failed("dense", 1, "out of memory", "full"))
    assert compared(tmp_path, SAME, other) == 1
    assert "ok in the first, out of memory in the second" in capsys.readouterr().out


def test_a_case_of_one_file_alone_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(tmp_path, SAME, report(SAME.results[0])) == 0
    assert "in the first file alone: dense at B = 1" in capsys.readouterr().out


def test_what_may_not_be_compared(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype must be the same"):
        compared(tmp_path, ladder(), ladder(dtype="float32"))
    with pytest.raises(ValueError, match="model must be the same"):
        compared(tmp_path, SAME, report(result("naive", 1, 0.002, model="small")))
    with pytest.raises(ValueError, match="no measured case in common"):
        compared(tmp_path, SAME, report(result("naive", 2, 0.002)))
    with pytest.raises(ValueError, match="no ratio can be compared"):
        compared(tmp_path, SAME, report(result("naive", 2, 0.002), device="Another"))


def test_results_of_another_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Times ten times as long are no contradiction; an engine that is faster here and slower there is."""
    pairs = (("naive", 1, 0.02), ("dense", 1, 0.01), ("naive", 8, 0.04), ("dense", 8, 0.02))
    there = report(*(result(e, b, s) for e, b, s in pairs))
    here = report(
        *(result(e, b, 10 * s, model="small", prompt=32) for e, b, s in pairs), device="Mine", dtype="float32"
    )
    assert compared(tmp_path, there, here) == 0
    out = capsys.readouterr().out
    assert "2 of 2 results hold here" in out
    assert "note: model random:gpt2 there, small here" in out
    assert "tok/s" not in out  # nothing absolute
    slow = report(*(result(e, b, 0.05) for e, b, _ in pairs[:2]), *here_of(pairs[2:]), device="Mine")
    assert compared(tmp_path, there, slow) == 1
    assert "does not hold here: faster there, even here" in capsys.readouterr().out


def here_of(pairs: tuple[tuple[str, int, float], ...]) -> list[object]:
    return [result(e, b, s) for e, b, s in pairs]


def test_an_engine_without_the_first_one_beside_it_is_left_out() -> None:
    there, here = ladder(), ladder(device="Mine")
    found = comparisons(there, here)
    assert {(one.engine, one.batch) for one in found} == {("dense", 1), ("transformers", 1), ("dense", 8)}
    assert all(one.holds and one.here == one.there for one in found)


def test_verdicts() -> None:
    assert [verdict(*x) for x in ((1.1, 1.2), (0.9, 0.95), (0.9, 1.2), (1.02, 1.2))] == [
        "faster",
        "slower",
        "even",
        "even",
    ]


def test_ratios_within_one_file() -> None:
    made = report(result("dense", 1, 0.004), result("paged", 1, 0.002), result("dense", 8, 0.004),
                  failed("paged", 8, "failed", "no"), result("transformers", 8, 0.008))  # fmt: skip
    lines = list(within(made, "dense"))
    assert [" ".join(line.split()[:5]) for line in lines] == [
        "random:gpt2 B=1 prompt 128 paged", "random:gpt2 B=8 prompt 128 transformers",
    ]  # fmt: skip
    assert re.search(r" (2\.0|1\.9)\d \[.*\] +faster than dense$", lines[0])
    assert re.search(r" 0\.(50|49)\d \[.*\] +slower than dense$", lines[1])
    assert list(within(made)) == lines  # over the first one
    with pytest.raises(ValueError, match="engine must be one of the file's, dense, paged, transformers, not 'naive'"):
        list(within(made, "naive"))
