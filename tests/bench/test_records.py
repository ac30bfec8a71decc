"""Results files: a spread is what it says, schemas are current, and a file is read whole or refused."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobench.core.outcome import OVER, summary
from nanobench.core.records import RESULTS, Graphs, Memory, Report, Spread, Stages
from nanobench.report import values
from nanobench.report.schemas import schemas
from tests.bench.samples import ladder, report, result, saved

SCHEMAS = Path(__file__).parents[2] / "bench" / "schema"
numbers = st.floats(1e-6, 1e6)


def test_spread_by_hand() -> None:
    spread = Spread.of([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (spread.median, spread.p10, spread.p90) == pytest.approx((3.0, 1.4, 4.6))
    assert spread.samples == (5.0, 1.0, 2.0, 4.0, 3.0)  # in the order in which they were measured


@given(st.lists(numbers, min_size=1, max_size=20))
def test_spread_lies_within_the_samples(samples: list[float]) -> None:
    spread = Spread.of(samples)
    assert min(samples) <= spread.p10 <= spread.median * (1 + 1e-9)
    assert spread.median * (1 - 1e-9) <= spread.p90 <= max(samples)


def test_schemas_are_current() -> None:
    for name, text in schemas().items():
        assert (SCHEMAS / name).read_text(encoding="utf-8") == text, f"{name}: run `python -m bench schema`"


def test_a_file_fits_its_schema(tmp_path: Path) -> None:
    schema = json.loads(schemas()["report.schema.json"])
    path = tmp_path / "made.json"
    ladder().save(path)
    jsonschema.validate(json.loads(path.read_text()), schema)
    assert Report.load(path) == ladder()


def test_a_report_of_a_cpu_can_be_read_again(tmp_path: Path) -> None:
    machine = ladder().machine.model_copy(update={"kind": "cpu", "capability": None, "l2_bytes": None, "driver": None})
    made = ladder().model_copy(update={"machine": machine})
    made.save(tmp_path / "cpu.json")
    assert Report.load(tmp_path / "cpu.json") == made


def test_unknown_fields_are_refused(tmp_path: Path) -> None:
    data = json.loads(ladder().model_dump_json())
    data["results"][0]["speed"] = 1
    (tmp_path / "odd.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="speed"):
        Report.load(tmp_path / "odd.json")


def test_files_of_the_repository_can_be_read() -> None:
    from nanobench.report.plot import load

    for path in RESULTS.glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("kind", "timeline") == "timeline":
            assert load(path) is not None, path


def test_decode_comes_from_the_same_medians_as_the_report() -> None:
    one = result("dense", 8, 0.002)
    spread, step = values.decode(one), values.step_seconds(one)
    assert spread is not None
    assert step is not None
    assert spread.median == one.tokens_per_s
    assert spread.median * step.median == pytest.approx(8)
    assert spread.p10 < spread.median < spread.p90


def test_the_limit_is_taken_from_the_longest_runs() -> None:
    short, long = result("naive", 1, 0.002), result("dense", 1, 0.003)
    long = long.model_copy(update={"case": long.case.model_copy(update={"new_tokens": 99}), "floor_share": 0.5})
    assert values.limit_tokens_per_s([short, long]) == pytest.approx(2 * (long.tokens_per_s or 0))
    assert values.limit_tokens_per_s([]) is None


def test_a_share_above_the_limit_is_explained() -> None:
    one = result("naive", 1, 0.002)
    assert OVER not in summary(one)
    assert OVER in summary(one.model_copy(update={"floor_share": 1.364}))


@pytest.mark.parametrize(
    ("show", "number", "text"),
    [
        (values.rate, 21898.6, "21,899 tok/s"), (values.rate, 9.876, "9.88 tok/s"), (values.seconds, 0.0028, "2.80 ms"),
        (values.seconds, 13.2e-6, "13.2 µs"), (values.seconds, 2.22, "2.22 s"), (values.seconds, 5e-9, "0.00500 µs"),
        (values.size, 283_554_816, "284 MB"), (values.size, 1.5e9, "1.50 GB"), (values.factor, 6.0, "6.00×"),
        (values.factor, 0.831, "0.831×"), (values.share, 0.0324, "3.2%"), (values.share, 0.21, "21%"),
        (values.factor, 123.4, "123×"),
    ],
)  # fmt: skip
def test_numbers_as_the_text_prints_them(show: object, number: float, text: str) -> None:
    assert callable(show)
    assert show(number) == text


def test_engines_stand_in_the_order_of_the_book(tmp_path: Path) -> None:
    shuffled = report(
        result("transformers", 1, 1.0), result("dense", 1, 1.0), result("other", 1, 1), result("naive", 1, 1.0)
    )
    assert values.engines_of(shuffled.results) == ["naive", "dense", "transformers", "other"]
    assert Report.load(saved(shuffled, tmp_path / "a.json")).find(engine="other", batch=1)


def memory(allocated: int, reserved: int) -> Memory:
    return Memory(allocated=allocated * 10**6, reserved=reserved * 10**6)


def test_memory_of_an_engine_that_sizes_itself_when_it_is_made() -> None:
    """Its cache and what is held for its graphs belong to each of its cases, though they stand before the run."""
    plain = result("dense", 1, 0.002)  # 10 MB in a run
    assert values.case_bytes(plain) == 10 * 10**6
    stages = Stages(before=memory(500, 600), made=memory(800, 900), ready=memory(810, 1050))
    assert values.case_bytes(plain.model_copy(update={"stages": stages})) == (10 + 300 + 150) * 10**6
    lean = Stages(before=memory(500, 600), made=memory(500, 600), ready=memory(500, 600))
    assert values.case_bytes(plain.model_copy(update={"stages": lean})) == 10 * 10**6
    assert values.case_bytes(plain.model_copy(update={"stages": stages, "memory_peak": None})) is None


def test_shares_of_replayed_steps() -> None:
    counted = {"captures": 2, "capture_s": 0.5, "bytes": 7}
    assert Graphs(**counted, steps=8, replayed=6).hit_rate == 0.75
    assert Graphs(**counted, steps=0, replayed=0).hit_rate is None


def test_every_kind_of_file_has_a_schema() -> None:
    written = {path.name for path in SCHEMAS.glob("*.json")}
    assert written == set(schemas())
    for text in schemas().values():
        jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_the_engines_of_a_report_stand_with_their_variants() -> None:
    names = ("paged-graph", "vllm", "dense-graph", "paged-graph-unfused", "dense", "transformers")
    ordered = values.engines_of([result(name, 1, 1.0) for name in names])
    assert ordered == ["dense", "dense-graph", "paged-graph-unfused", "paged-graph", "transformers", "vllm"]
