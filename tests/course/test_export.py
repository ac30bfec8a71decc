"""A record, and its three exports, held to what Gradescope and Jenkins publish of their formats."""

from __future__ import annotations

import csv
import io
import json
import stat
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from nanocourse.grade import export
from nanocourse.grade.record import CheckGrade, ExerciseGrade, GradeRecord, Isolation, write

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "gradescope-results.schema.json").read_text())


def record(name: str = "Ünï Student", status: str = "failed") -> GradeRecord:
    checks = (
        CheckGrade("in-order", "It reads in order.", "passed", 2.5, 2.5),
        CheckGrade("shuffled", "It reads shuffled.", status, 2.5 * (status == "passed"), 2.5),  # type: ignore[arg-type]
    )
    exercise = ExerciseGrade("1.1", "Attention", "heads-first", "a b/ex1.py", "ab" * 32, checks, mistake="no-scale")
    isolation = Isolation(("bubblewrap",), (("landlock", "no such kernel"),))
    return GradeRecord(name, "Chapter 1", (exercise,), isolation, "f" * 64, "s" * 16, "d" * 64, 8, "0.1", seconds=1.5)


def test_a_record_survives_json(tmp_path: Path) -> None:
    record().save(tmp_path / "one.json")
    assert GradeRecord.load(tmp_path / "one.json") == record()
    assert (record().points, record().of) == (2.5, 5.0)


@pytest.mark.parametrize("text", ["", '{"schema": "x"}', "null"])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "one.json").write_text(text)
    with pytest.raises(ValueError, match="is not a readable record"):
        GradeRecord.load(tmp_path / "one.json")


def test_a_file_is_whole_or_the_old_one_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "one.json"
    write(path, "old")
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(path, "new")
    assert path.read_text() == "old"


@pytest.mark.parametrize("status", ["passed", "failed", "hung", "crashed", "not begun", "not run"])
def test_gradescopes_schema(status: str) -> None:
    made = export.gradescope(record(status=status))
    jsonschema.validate(made, SCHEMA, jsonschema.Draft202012Validator)
    assert made["score"] == sum(test["score"] for test in made["tests"])
    assert [test["status"] for test in made["tests"]] == ["passed", "passed" if status == "passed" else "failed"]
    assert made["stdout_visibility"] == "hidden"
    assert "not finished" in made["output"]  # this record is not complete


def test_junits_schema() -> None:
    hostile = "a\x00\x1b[2J<&>\"'\ud800\ufffe end"
    text = export.junit([record(), record(hostile, "hung"), record(status="passed")])
    root = ElementTree.fromstring(text.encode())
    assert [suite.get("name") for suite in root] == ["Ünï Student", "a??[2J<&>\"'?? end", "Ünï Student"]
    assert [(s.get("tests"), s.get("failures"), s.get("errors")) for s in root] == [
        ("2", "1", "0"), ("2", "0", "1"), ("2", "0", "0"),
    ]  # fmt: skip
    (failure,) = root[0].iter("failure")
    assert "no-scale" in (failure.get("message") or "")


def test_a_table_for_spreadsheets() -> None:
    hostile = '=HYPERLINK("x")'
    rows = list(csv.DictReader(io.StringIO(export.csv([record(), record(hostile), record("-1,5\nb")]))))
    assert [row["submission"] for row in rows] == ["Ünï Student", "'" + hostile, "'-1,5\nb"]
    assert (rows[0]["points"], rows[0]["of"], rows[0]["1.1"]) == ("2.5", "5", "2.5")
    assert rows[0]["mistakes"] == "1.1 no-scale"
    assert (rows[0]["isolated"], rows[0]["complete"]) == ("no", "no")


def test_the_table_tells_not_begun_from_wrong_and_names_checks() -> None:
    def row(made: GradeRecord) -> dict[str, str]:
        (found,) = csv.DictReader(io.StringIO(export.csv([made])))
        return found

    (exercise,) = record().exercises
    untouched = tuple(replace(check, status="not begun", points=0.0) for check in exercise.checks)
    assert row(record())["checks"] == "1.1 shuffled failed"
    assert row(replace(record(), exercises=(replace(exercise, checks=untouched),)))["checks"] == "1.1 not begun"


def test_nothing_handed_in_is_said_once() -> None:
    (exercise,) = record().exercises
    none = [replace(exercise, id=id, file="", problem=f"there is no file {id}.py", mistake="") for id in ("1.1", "1.2")]
    made = replace(record(), exercises=tuple(none), complete=True)
    assert export.csv([made]).count("there is no file") == 1
    assert "\n".join(export.receipt(made)).count("there is no file") == 1


def test_students_are_not_told_what_isolation_lacks() -> None:
    assert "landlock" not in export.gradescope(record())["output"]


def test_passed_without_points_is_no_success() -> None:
    """Checks that an answer without work passes too: they count nothing, and say why."""
    (exercise,) = record(status="passed").exercises
    idle = tuple(replace(check, points=0.0) for check in exercise.checks)
    made = replace(record(), exercises=(replace(exercise, checks=idle, note="an answer that does no work"),))
    assert all("no work" in test["output"] for test in export.gradescope(made)["tests"])
    root = ElementTree.fromstring(export.junit([made]).encode())
    assert root[0].get("failures") == "2"
