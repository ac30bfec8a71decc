"""Results files: those of the repository fit their schemas, and the numbers that are worked out of a result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from nanobench.core.records import RESULTS, Memory, ResultsFile, Spread, Stages
from nanobench.report import values
from nanobench.report.schemas import KINDS, schemas
from tests.bench.samples import ladder, result

SCHEMAS = Path(__file__).parents[2] / "bench" / "schema"
PUBLISHED = sorted({path.name for path in RESULTS.glob("*.json")} - {"h200-lies.json"})  # chapter 4's own record


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_file_of_the_repository_fits_its_schema_and_is_read_whole(name: str) -> None:
    content = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    kind = content.get("kind", "report")
    jsonschema.validate(content, json.loads((SCHEMAS / f"{kind}.schema.json").read_text(encoding="utf-8")))
    read = KINDS[kind].model_validate_json((RESULTS / name).read_bytes())
    assert KINDS[kind].model_validate_json(read.model_dump_json()) == read


def test_schemas_are_current() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in SCHEMAS.glob("*.json")}
    assert written == schemas(), "run `python -m bench schema`"
    for text in written.values():
        jsonschema.Draft202012Validator.check_schema(json.loads(text))


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if issubclass(kind, ResultsFile)])
def test_unknown_fields_are_refused(kind: type[ResultsFile]) -> None:
    with pytest.raises(ValueError, match=r"speed\s+Extra inputs are not permitted"):
        kind.model_validate({**ladder().model_dump(), "speed": 1})


def test_spread_by_hand() -> None:
    spread = Spread.of([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (spread.median, spread.p10, spread.p90) == pytest.approx((3.0, 1.4, 4.6))
    assert spread.samples == (5.0, 1.0, 2.0, 4.0, 3.0)  # in the order in which they were measured


def test_the_limit_is_taken_from_the_longest_runs() -> None:
    short, long = result("naive", 1, 0.002), result("dense", 1, 0.003)
    long = long.model_copy(update={"case": long.case.model_copy(update={"new_tokens": 99}), "floor_share": 0.5})
    assert values.limit_tokens_per_s([short, long]) == pytest.approx(2 * (long.tokens_per_s or 0))
    assert values.limit_tokens_per_s([]) is None


@pytest.mark.parametrize(
    ("show", "number", "text"),
    [
        (values.rate, 21898.6, "21,899 tok/s"), (values.rate, 9.876, "9.88 tok/s"), (values.seconds, 0.0028, "2.80 ms"),
        (values.seconds, 13.2e-6, "13.2 µs"), (values.seconds, 2.22, "2.22 s"), (values.size, 283_554_816, "284 MB"),
        (values.size, 1.5e9, "1.50 GB"), (values.factor, 6.0, "6.00×"), (values.factor, 0.831, "0.831×"),
        (values.share, 0.0324, "3.2%"), (values.share, 0.21, "21%"),
    ],
)  # fmt: skip
def test_numbers_as_the_text_prints_them(show: Callable[[float], str], number: float, text: str) -> None:
    assert show(number) == text


def test_engines_stand_in_the_order_of_the_book_with_their_variants() -> None:
    names = ("other", "paged-graph", "vllm", "dense-graph", "paged-graph-unfused", "dense", "transformers")
    ordered = values.engines_of([result(name, 1, 1.0) for name in names])
    assert ordered == ["dense", "dense-graph", "paged-graph-unfused", "paged-graph", "transformers", "vllm", "other"]


def test_memory_of_an_engine_that_sizes_itself_when_it_is_made() -> None:
    """Its cache and what is held for its graphs belong to each of its cases, though they stand before the run."""

    def memory(allocated: int, reserved: int) -> Memory:
        return Memory(allocated=allocated * 10**6, reserved=reserved * 10**6)

    plain = result("dense", 1, 0.002)  # 10 MB in a run
    assert values.case_bytes(plain) == 10 * 10**6
    stages = Stages(before=memory(500, 600), made=memory(800, 900), ready=memory(810, 1050))
    assert values.case_bytes(plain.model_copy(update={"stages": stages})) == (10 + 300 + 150) * 10**6
    assert values.case_bytes(plain.model_copy(update={"stages": stages, "memory_peak": None})) is None
