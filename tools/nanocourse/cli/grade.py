"""`nanoinfer course grade`: a class on one machine, or one submission for Gradescope."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanocourse.cli.asking import Lines
from nanocourse.cli.lessons import Plain
from nanoinfer.cli.errors import Refused, Stopped, refusing
from nanoinfer.cli.terminal import is_terminal, remark

if TYPE_CHECKING:
    from nanocourse.grade.assignment import Assignment
    from nanocourse.grade.grade_class import Entry, Seen, Task
    from nanocourse.grade.record import GradeRecord

DRAWS = 5  # submissions on whose inputs the strength of a variant is measured
METADATA = "submission_metadata.json"  # of Gradescope, beside the submission


def grade(
    submissions: Annotated[Path, typer.Argument(help="A folder with one folder or zip a student.", show_default=False)],
    assignment: Annotated[Path, typer.Option("--assignment", help="assignment.json, or its folder.")],
    csv: Annotated[Path | None, typer.Option("--csv", help="A table, a line a submission.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="JUnit XML, a suite a submission.")] = None,
    results: Annotated[
        Path | None, typer.Option("--results", help="Folder of the records; grading resumes by it.")
    ] = None,
    gradescope: Annotated[
        Path | None, typer.Option("--gradescope", help="results.json: SUBMISSIONS is then one submission.")
    ] = None,
    submission_id: Annotated[
        str | None, typer.Option("--submission-id", help="Of that one; hidden inputs depend on it.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=64, help="Submissions graded at once.")] = 1,
    regrade: Annotated[
        list[str] | None, typer.Option("--regrade", help="Grade this one again, or all.", metavar="NAME|all")
    ] = None,
    require_isolation: Annotated[
        bool, typer.Option("--require-isolation", help="Refuse where a layer of isolation is missing.")
    ] = False,
    strength: Annotated[bool, typer.Option("--strength", help="Measure first what these hidden inputs catch.")] = False,
    plain: Plain = False,
) -> int:
    """Grade submissions on hidden inputs, each in processes that can reach nothing else."""
    from nanocourse.grade.assignment import SECRET_FILE, Assignment, load_secret
    from nanocourse.grade.grade_class import Entry, Task, entries

    out = Lines(plain)
    with refusing():
        if (csv is None and junit is None) == (gradescope is None):
            raise Refused("give --csv or --junit for a class, or --gradescope for one submission")
        if submission_id is not None and gradescope is None:
            raise Refused("--submission-id is for one submission, with --gradescope")
        asked, secret = Assignment.load(assignment), load_secret(assignment)
        if gradescope is not None:
            if not submissions.exists():
                raise Refused(f"there is no submission {submissions}")
            chosen, others = [Entry(submission_id or _own_id(submissions), submissions)], list[str]()
        else:
            chosen, others = entries(submissions)
        again = _known(regrade or [], chosen)
        if strength:
            _strength(out, asked, secret, chosen)
    for name in others:
        remark(f"nanoinfer: {name} is neither a folder nor a zip, and was left out")
    secret_file = (assignment if assignment.is_dir() else assignment.parent) / SECRET_FILE
    written = [path for path in (csv, junit, gradescope) if path is not None]
    with _results_folder(results, csv or junit, kept=gradescope is None) as folder:
        task = Task(assignment, secret_file, folder, require_isolation, tuple(written))
        try:
            records = _run(chosen, task, asked, secret, jobs, again, plain, gradescope)
        except KeyboardInterrupt:
            records = _export_so_far(chosen, task, asked, csv, junit, gradescope)
            done = sum(record.complete for record in records)
            raise Stopped(f"stopped by Ctrl-C: {done} of {len(chosen)} are done, and kept in {folder}") from None
        _export(records, csv, junit, gradescope)
    for record in records:
        out.line(_summary(record), "good" if record.complete else "bad")
    return 0


def _run(
    chosen: Sequence[Entry], task: Task, asked: Assignment, secret: str, jobs: int, again: list[str], plain: bool,
    gradescope: Path | None,
) -> list[GradeRecord]:  # fmt: skip
    """Grade, with a bar on a terminal; Gradescope's file is there from the first check on."""
    from nanocourse.grade.grade_class import GraderRefused, grade_class
    from nanocourse.grade.record import GradeRecord

    with _bar(len(chosen), plain) as bar:

        def look(seen: Seen) -> None:
            bar(seen)
            if gradescope is not None:
                with contextlib.suppress(ValueError):
                    _export([GradeRecord.load(task.record(chosen[0]))], None, None, gradescope)

        try:
            return grade_class(chosen, task, asked, secret, jobs, again, look)
        except GraderRefused as error:
            raise Refused(str(error)) from error


@contextlib.contextmanager
def _bar(total: int, plain: bool) -> Iterator[Any]:
    """A progress bar with the time left, where a person looks on; else a line for each tenth."""
    import sys

    if not is_terminal(sys.stderr) or plain:
        told = {0}

        def line(seen: Seen) -> None:
            if seen.done * 10 // total not in told:
                told.add(seen.done * 10 // total)
                remark(f"nanoinfer: {seen.done} of {total} graded")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("submissions"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda seen: progress.update(task, completed=seen.done + sum(seen.fractions.values()))


def _export(records: Sequence[GradeRecord], csv: Path | None, junit: Path | None, gradescope: Path | None) -> None:
    """Write what was asked for. Refused where a file cannot be written."""
    from nanocourse.grade import export as exporting
    from nanocourse.grade.record import write

    try:
        if csv is not None:
            write(csv, exporting.csv(records))
        if junit is not None:
            write(junit, exporting.junit(records))
        if gradescope is not None and records:
            write(gradescope, json.dumps(exporting.gradescope(records[0]), indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise Refused(f"{error.filename} cannot be written: {error.strerror}") from error


def _export_so_far(
    chosen: Sequence[Entry],
    task: Task,
    asked: Assignment,
    csv: Path | None,
    junit: Path | None,
    gradescope: Path | None,
) -> list[GradeRecord]:
    from nanocourse.grade.grade_class import records_of

    records = records_of(chosen, task, asked)
    _export(records, csv, junit, gradescope)
    return records


@contextlib.contextmanager
def _results_folder(asked: Path | None, beside: Path | None, kept: bool) -> Iterator[Path]:
    """Where records lie: as asked for, else beside the table; one submission's need not outlive its export."""
    if asked is not None:
        yield asked
    elif kept and beside is not None:
        yield beside.with_name(f"{beside.stem}-results")
    else:
        with tempfile.TemporaryDirectory(prefix="nanoinfer-results-") as folder:
            yield Path(folder)


def _own_id(submission: Path) -> str:
    """Of one submission: what Gradescope calls it, else its file's name."""
    try:
        told = json.loads((submission.parent / METADATA).read_text(encoding="utf-8"))
        return f"gradescope-{int(told['id'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return submission.resolve().name


def _known(names: list[str], chosen: Sequence[Entry]) -> list[str]:
    ids = {entry.id for entry in chosen}
    for name in names:
        if name != "all" and name not in ids:
            raise Refused(f"--regrade must name a submission or all, not {name!r}")
    return names


def _strength(out: Lines, asked: Assignment, secret: str, chosen: Sequence[Entry]) -> None:
    """A line an exercise: wrong answers that the inputs of some of these very submissions catch."""
    from nanocourse.grade.variant_strength import variant_strength

    some = [entry.id for entry in chosen[:DRAWS]]
    for one in variant_strength(asked, secret, some):
        lost = f"; not always: {', '.join(one.missed)}" if one.missed else ""
        edition = f" ({one.edition})" if one.edition else ""
        caught = f"{one.caught} of {one.total} known wrong answers caught"
        out.line(
            f"{one.id}{edition}: {caught}, on the inputs of {len(some)} submissions{lost}", "bad" if lost else "good"
        )


def _summary(record: GradeRecord) -> str:
    missing = "" if record.isolation.whole else "; not fully isolated"
    whole = "" if record.complete else "; not finished"
    return f"{record.submission}: {record.points:g} of {record.of:g} in {record.seconds:.0f} s{missing}{whole}"
