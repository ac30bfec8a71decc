"""Promise 6: every number in prose comes out of a results file, every excerpt and command out of the source.

The checks are shown to fail: on a stale number, on one typed by hand, on a renamed function, each of them alone.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from nanobench.core.records import Spread
from nanobench.report.intervals import claimed
from nanobook.text.check_text import INLINE, check, fill, filled, pages
from nanobook.text.commands import broken_commands
from nanobook.text.ledger import RUNGS, ledger
from nanobook.text.lint import hand_typed
from nanobook.text.marker_values import value
from nanobook.text.page_blocks import BLOCKS
from nanoinfer.config import ENGINES
from tests.bench.samples import ladder, report, result, saved
from tests.book.chapter_pages import ROOT, checkout

SOURCE = "SPOKES = 8\n\n\nclass Wheel:\n    def roll(self):\n        return 1\n"
PAGE = """# A page

At 8 rows the cache gives ?<!--= gpu dense B=8 tok/s -->, which is ?<!--= gpu dense/naive B=8 tok/s --> the speed.

<!--[[[cog table("gpu", batches=(1, 8, 64, 256), bandwidth_limit=True) ]]]-->
<!--[[[end]]]-->

<!--[[[cog excerpt("nanoinfer.thing:Wheel.roll") ]]]-->
<!--[[[end]]]-->

```sh
nanoinfer generate "Once upon a time" --seed 3
python -m bench run --preset laptop
```
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one page, filled in, one module and one results file."""
    root = tmp_path_factory.mktemp("made")
    saved(ladder(), root / "bench" / "results" / "gpu.json")
    (root / "nanoinfer").mkdir()
    (root / "nanoinfer" / "thing.py").write_text(SOURCE)
    (root / "README.md").write_text(PAGE)
    assert fill(root) == [root / "README.md"]
    return root


@pytest.fixture
def book(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(made, tmp_path / "book")


def faults(book: Path) -> list[str]:
    return [str(fault) for fault in check(book)]


@checkout
@pytest.mark.long
def test_the_pages_of_the_book() -> None:
    assert pages(ROOT)
    assert faults(ROOT) == []


@checkout
def test_commands_and_markers_that_the_benchmark_explains() -> None:
    text = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    assert list(broken_commands(text)) == []
    assert len(INLINE.findall(text)) == text.count("<!--= ") - text.count("`<!--= ")
    assert set(re.findall(r"\[\[\[cog (\w+)\(", text)) == set(BLOCKS)


def test_a_page_is_filled_in(book: Path) -> None:
    text = (book / "README.md").read_text()
    dense = ladder().find(engine="dense", batch=8)[0].tokens_per_s or 0
    naive = ladder().find(engine="naive", batch=8)[0].tokens_per_s or 0
    assert f"gives {dense:,.0f} tok/s<!--=" in text
    assert f"which is {dense / naive:.2f}×<!--=" in text
    for part in ("| naive | ", "over budget", "bandwidth limit", "```python\ndef roll(self):\n    return 1\n```"):
        assert part in text
    assert check(book) == []
    assert fill(book) == []


@pytest.mark.parametrize(
    "file, old, new, told",
    [
        ("README.md", "cache gives ", "cache gives 9", "README.md:3: stale"),
        ("README.md", "A page\n", "A page\n\nIt runs at 22,000 tok/s.\n", "a number typed by hand: '22,000 tok/s'"),
        ("README.md", "A page\n", "A page\n\n| a | b |\n| --- | --- |\n| c | 21,898 |\n", "a table of figures"),
        ("nanoinfer/thing.py", "def roll", "def spin", "there is no 'roll'"),
        ("nanoinfer/thing.py", "return 1", "return 2", "stale"),
        ("README.md", "--seed 3", "--sead 3", "No such option: --sead"),
        ("README.md", "--seed 3", "--seed 3 | (", "not a shell's language"),
        ("README.md", "gpu dense B=8", "gpu dense B=7", "README.md:3: a marker that cannot be filled in"),
    ],
)  # fmt: skip
def test_one_thing_that_is_wrong_is_caught(book: Path, file: str, old: str, new: str, told: str) -> None:
    text = (book / file).read_text()
    assert old in text
    (book / file).write_text(text.replace(old, new))
    (fault,) = faults(book)
    assert told in fault


def test_a_marker_behind_no_number_is_refused(book: Path) -> None:
    (book / "README.md").write_text("words<!--= gpu copy -->\n")
    with pytest.raises(ValueError, match=r"README.md:1: .*behind no number"):
        filled(book / "README.md", book)


@pytest.mark.parametrize(
    "line",
    [
        "3 tokens/s", "9 tokens a second", "1.3 µs", "2 s of it", "2.5 seconds", "16 GB", "4.27 TB/s",
        "1.7x faster", "it is x1.7", "a 3-fold gain", "97%", "97 percent", "22k tok/s", "**21,899** is 5 ms",
        "[6 ms](nowhere.md)", "```text\n4 ms\n```", "runs 3 times faster", "| dense | 4.1 |",
    ],
)  # fmt: skip
def test_what_is_a_number_with_a_unit(line: str) -> None:
    assert list(hand_typed(line + "\n", INLINE)), line


@pytest.mark.parametrize(
    "line",
    [
        "768 x 2304 of float32", "12x64", "GPT-2", "chapter 4", "128 tokens", "in 2026", "`4 ms` in code", "64 rows",
        "```python\nx = 4  # ms\ny = '97%'\n```", "a [page](5%20ms.md)", "3 steps", "H200 s", "the 1990s", "B = 8",
        "| 1 | naive | [model](model.py) |", "5 us<!--= gpu dense B=8 step -->",
        "a 5 ms bus <!-- exempt: datasheet -->",
        "<!-- exempt: arithmetic -->\n\n| a | 5 |\n| b | 6 |\n", "<!-- exempt: printed -->\n```text\n5 ms\n\n6 ms\n```",
        "| | B = 1 |\n| --- | --- |\n| dense | 5 us<!--= gpu dense B=1 step --> |",
    ],
)  # fmt: skip
def test_what_is_none(line: str) -> None:
    assert list(hand_typed(line + "\n", INLINE)) == [], line


def test_an_exemption_ends_with_its_paragraph_and_needs_a_reason() -> None:
    assert [at for at, _ in hand_typed("<!-- exempt: why -->\n5 ms\n6 ms\n\n7 ms\n", INLINE)] == [5]
    assert [at for at, _ in hand_typed("5 ms <!-- exempt: -->\n", INLINE)] == [1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("gpu dense B=1 launches", "150 launches"), ("gpu dense B=1 memory", "10.0 MB"), ("gpu copy", "4.25 TB/s"),
        ("gpu naive B=8/1 memory", "8.00×"), ("gpu dense/naive B=1 memory", "1.00×"),
    ],
)  # fmt: skip
def test_what_a_marker_stands_for(made: Path, words: str, text: str) -> None:
    assert value(words, made / "bench" / "results") == text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("none dense tok/s", r"no results file none\.json"), ("gpu dense tok/s", "fits 4 cases"),
        ("gpu naive B=64 tok/s", "over budget"), ("gpu fast/dense B=1 tok/s between", "no engine is called 'fast'"),
        ("gpu between", "names no quantity"), ("gpu dense b=1 tok/s", "key must be one of"),
        ("gpu dense/naive B=1/8 tok/s", "two ratios"),
    ],
)  # fmt: skip
def test_markers_that_are_refused(made: Path, words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        value(words, made / "bench" / "results")


@pytest.mark.parametrize("quantity", ["tok/s", "step", "ttft"])
def test_a_difference_that_the_repeats_do_not_carry_is_refused(tmp_path: Path, quantity: str) -> None:
    """Two engines of 4 ms a step, which differ by their noise alone, and one of 1 ms."""
    times = {"dense": 0.004, "paged": 0.004, "naive": 0.001}
    saved(report(*(result(engine, 8, seconds) for engine, seconds in times.items())), tmp_path / "gpu.json")
    words = f"gpu paged/dense B=8 {quantity}"
    with pytest.raises(ValueError, match=r"the repeats do not carry [\d.]+×, only [\d.]+ to [\d.]+×; say `between`"):
        value(words, tmp_path)
    low, _, high = value(f"{words} between", tmp_path).removesuffix("×").partition(" to ")
    assert 0.96 < float(low) < float(high) < 1.04
    ratio = float(value(f"gpu naive/dense B=8 {quantity}", tmp_path).removesuffix("×"))
    assert ratio == pytest.approx(4 if quantity == "tok/s" else 0.25, rel=0.05)


def test_medians_whose_ranges_overlap_are_no_claim() -> None:
    one, like, other = (Spread.of([base + at / 10 for at in range(7)]) for base in (1.0, 1.2, 3.0))
    assert claimed(other, one) == "2.54×"
    with pytest.raises(ValueError, match=r"the 10-90% ranges overlap, 1\.26 to 1\.74 and 1\.06 to 1\.54"):
        claimed(like, one)


def test_the_ledger_says_where_a_rung_loses() -> None:
    header, rows = ledger(ladder())
    (cells,) = (dict(zip(header, row, strict=True)) for row in rows if row[0].startswith("`dense`"))
    assert (cells["B = 64"], cells["B = 256"]) == ("naive over budget", "not run")
    assert cells["B = 8"].startswith(("1.5", "1.6"))
    assert re.search(r"decode 0\.8.*B = 1.*TTFT 1\.2", cells["where it loses"])
    assert "memory" not in cells["where it loses"]


@pytest.mark.parametrize("unfused, expected", [({}, [8]), ({"paged-graph-unfused": 0.002}, [2, 4])])
def test_graphs_and_fused_kernels_are_two_rows(unfused: dict[str, float], expected: list[float]) -> None:
    """Neither has the other's gain; where nothing was measured without fused kernels, there is one row."""
    times = {"paged": 0.004, "paged-graph": 0.0005, **unfused}
    _, rows = ledger(report(*(result(engine, 1, seconds) for engine, seconds in times.items())))
    gains = [float(row[3].removesuffix("×")) for row in rows if "graph" in row[0]]
    assert gains == pytest.approx(expected, rel=0.05)
    assert set(ENGINES) <= set(RUNGS)
