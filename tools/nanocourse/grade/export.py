"""One record as Gradescope's results.json, many as JUnit XML and as CSV.

Gradescope: https://gradescope-autograders.readthedocs.io/en/latest/specs/, "Output format". JUnit: junit-10.xsd of
Jenkins' xunit plugin. File names and error messages come from students, and are escaped for each format.
"""

from __future__ import annotations

import csv as csv_module
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nanocourse.grade.record import CheckGrade, ExerciseGrade, GradeRecord, write

NOTHING = "there is no file of any exercise"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would compute


def gradescope(record: GradeRecord) -> dict[str, Any]:
    """The content of results.json: one test a check, with partial credit."""
    tests = [
        {
            "name": f"{one.id} {one.title}: {check.name}", "number": f"{one.id}.{at}",
            "score": round(check.points, 4), "max_score": round(check.of, 4),
            "status": "passed" if check.status == "passed" else "failed",
            "output": _told(one, check), "output_format": "text", "name_format": "text", "visibility": "visible",
        }
        for one in record.exercises
        for at, check in enumerate(one.checks, 1)
    ]  # fmt: skip
    return {
        "score": record.points, "execution_time": record.seconds, "output": "\n".join(receipt(record)),
        "output_format": "text", "visibility": "visible", "stdout_visibility": "hidden", "tests": tests,
        "extra_data": {"record": record.to_json()},
    }  # fmt: skip


def junit(records: Iterable[GradeRecord]) -> str:
    """JUnit XML: one suite a submission, one case a check. What could not run is an error, what failed a failure."""
    root = ElementTree.Element("testsuites", name="nanoinfer course")
    for record in records:
        cases = [(one, check) for one in record.exercises for check in one.checks]
        states = [_junit_state(check) for _, check in cases]
        suite = ElementTree.SubElement(
            root, "testsuite", name=_xml(record.submission), tests=str(len(cases)), time=f"{record.seconds:.1f}",
            failures=str(states.count("failure")), errors=str(states.count("error")), skipped="0",
        )  # fmt: skip
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in (
            ("points", f"{record.points:g}"), ("of", f"{record.of:g}"), ("isolation", record.isolation.told()),
            ("complete", str(record.complete).lower()),
        ):  # fmt: skip
            ElementTree.SubElement(properties, "property", name=name, value=_xml(value))
        for (one, check), state in zip(cases, states, strict=True):
            case = ElementTree.SubElement(suite, "testcase", classname=f"{one.id} {one.title}", name=check.name)
            if state:
                ElementTree.SubElement(case, state, type=check.status, message=_xml(_told(one, check)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def csv(records: Sequence[GradeRecord]) -> str:
    """A table with a header: one line a submission, one column an exercise, and what teachers ask for next."""
    ids = list(dict.fromkeys(one.id for record in records for one in record.exercises))
    out = io.StringIO()
    table = csv_module.writer(out, lineterminator="\n")
    after = ["complete", "isolated", "checks", "mistakes", "problems", "notes", "seconds"]
    table.writerow(["submission", "points", "of", *ids, *after])
    for record in records:
        by_id = {one.id: one for one in record.exercises}
        mistakes = "; ".join(f"{one.id} {one.mistake}" for one in record.exercises if one.mistake)
        lost = "; ".join(f"{one.id} {text}" for one in record.exercises if (text := _lost(one)))
        told = [f"{one.id} {text}" for one in record.exercises for text in (one.problem, one.note) if text]
        told = [NOTHING] if record.empty else told
        cells: list[Any] = [record.submission, f"{record.points:g}", f"{record.of:g}"]
        cells += [f"{by_id[id].points:g}" if id in by_id else "" for id in ids]
        cells += ["yes" if record.complete else "no", "yes" if record.isolation.whole else "no", lost, mistakes]
        cells += ["; ".join(told), "; ".join(record.notes), f"{record.seconds:g}"]
        table.writerow([_cell(cell) for cell in cells])
    return out.getvalue()


def receipt(record: GradeRecord) -> list[str]:
    """What was run, in lines for students and teachers."""
    lines = [f"{record.title}: {record.points:g} of {record.of:g} points"]
    for one in record.exercises:
        remarks = [] if record.empty else _remarks(one)
        lines.append(f"{one.id} {one.title}: {one.points:g} of {one.of:g}" + "".join(f"; {t}" for t in remarks))
    lines += [NOTHING] if record.empty else []
    files = ", ".join(f"{one.file} {one.sha256[:12]}" for one in record.exercises if one.file) or "no file"
    lines.append(f"Receipt: {files}; {record.seeds} sets of hidden inputs")
    lines += [f"Note: {note}" for note in record.notes]
    return lines if record.complete else [*lines, "This is not the whole: grading was not finished."]


def _lost(one: ExerciseGrade) -> str:
    """Which checks did not pass, and how they ended; "not begun" for an untouched stub."""
    if {check.status for check in one.checks} == {"not begun"}:
        return "not begun"
    lost = (check for check in one.checks if check.status not in ("passed", "not run"))
    return ", ".join(f"{check.name} {check.status}" for check in lost)


def _remarks(one: ExerciseGrade) -> list[str]:
    mistake = f"the known mistake {one.mistake}" if one.mistake else ""
    return [text for text in (one.problem, mistake, one.note) if text]


def _told(one: ExerciseGrade, check: CheckGrade) -> str:
    """What a student sees of a hidden check: whether it holds, and at most the mistake's name."""
    more = _remarks(one) if check.status != "passed" or not check.points else []
    return "; ".join([f"{check.says} {check.status}", *more])


def _junit_state(check: CheckGrade) -> str:
    if check.status == "passed":
        return "" if check.points else "failure"
    return "error" if check.status in ("hung", "crashed", "not run") else "failure"


def _xml(text: str) -> str:
    """Text without the characters that XML 1.0 cannot represent."""
    return "".join(
        c if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "?" for c in text
    )


def _cell(value: Any) -> Any:
    """Text that a spreadsheet shows and does not compute."""
    text = str(value)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.startswith(FORMULA) else text
    return text


WRITERS: dict[str, Callable[[Sequence[GradeRecord]], str]] = {
    "csv": csv,
    "junit": junit,
    "gradescope": lambda records: json.dumps(gradescope(records[0]), indent=1, ensure_ascii=False) + "\n",
}


def write_all(records: Sequence[GradeRecord], paths: Mapping[str, Path | None]) -> None:
    """Write each export that has a path, by its name in WRITERS. gradescope: of the one record. OSError."""
    for kind, path in paths.items():
        if path is not None:
            write(path, WRITERS[kind](records))
