"""`nanoinfer course grade`: a class on one machine, or one submission for Gradescope."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from nanocourse.cli.console import Lines, refusing
from nanocourse.cli.options import Plain
from nanoinfer.cli.errors import Refused, Stopped
from nanoinfer.cli.options import output_file
from nanoinfer.cli.terminal import is_terminal, remark

if TYPE_CHECKING:
    from nanocourse.grade.assignment import Assignment
    from nanocourse.grade.grade_class import Look
    from nanocourse.grade.record import GradeRecord

DRAWS = 5  # submissions on whose inputs the strength of a variant is measured
METADATA = "submission_metadata.json"  # of Gradescope, beside the submission
BUSY = 4.0  # times its limit that a submission may take on a machine of one's own, by the clock on the wall


def grade(
    submissions: Annotated[Path, Argument(help="A folder with one folder or zip a student.", show_default=False)],
    assignment: Annotated[Path, Option(help="assignment.json, or its folder.")],
    csv: Annotated[
        Path | None, Option(parser=output_file, metavar="FILE", help="A table, a line a submission.")
    ] = None,
    junit: Annotated[
        Path | None, Option(parser=output_file, metavar="FILE", help="JUnit XML, a suite a submission.")
    ] = None,
    results: Annotated[Path | None, Option(help="Folder of the records; grading resumes by it.")] = None,
    gradescope: Annotated[
        Path | None,
        Option(parser=output_file, metavar="FILE", help="results.json: SUBMISSIONS is then one submission."),
    ] = None,
    submission_id: Annotated[str | None, Option(help="Of that one; hidden inputs depend on it.")] = None,
    jobs: Annotated[
        int | None, Option(min=1, max=64, help="Submissions graded at once.", show_default="one a core")
    ] = None,
    regrade: Annotated[list[str] | None, Option(help="Grade this one again, or all.", metavar="NAME|all")] = None,
    trust_students: Annotated[
        bool, Option("--trust-students", help="Grade even where a layer of isolation is missing.")
    ] = False,
    strength: Annotated[bool, Option("--strength", help="Measure first what these hidden inputs catch.")] = False,
    plain: Plain = False,
) -> None:
    """Grade submissions on hidden inputs, each in processes that can reach nothing else."""
    from nanocourse.grade.export import write_all
    from nanocourse.grade.grade_class import ALL, Entry, Task, entries, grade_class, records_of
    from nanocourse.grade.grade_submission import exercises_of

    if (csv is None and junit is None) == (gradescope is None):
        raise Refused("give --csv or --junit for a class, or --gradescope for one submission")
    if submission_id is not None and gradescope is None:
        raise Refused("--submission-id is for one submission, with --gradescope")
    out, exports = Lines(plain), {"csv": csv, "junit": junit, "gradescope": gradescope}
    with refusing(), ExitStack() as stack:
        # Records are stored as asked, else beside the table; those of one submission need not outlive the export.
        table = csv or junit
        if results is None and table is not None:
            results = table.with_name(f"{table.stem}-results")
        folder = results or Path(stack.enter_context(TemporaryDirectory(prefix="nanoinfer-results-")))
        written = tuple(path for path in exports.values() if path is not None)
        patience = 1.0 if gradescope is not None else BUSY  # a platform has a limit of its own
        task = Task(assignment, folder, not trust_students, written, patience)
        secret, _ = task.secret, exercises_of(task.assignment)  # before a record is touched: one may be gone
        if gradescope is None:
            chosen, others = entries(submissions)
        else:
            chosen, others = [Entry(submission_id or _own_id(submissions), submissions)], []
        for name in regrade or ():
            if name not in (ALL, *(entry.id for entry in chosen)):
                raise Refused(f"--regrade must name a submission or all, not {name!r}")
        if strength:
            _show_strength(out, task.assignment, secret, [entry.id for entry in chosen[:DRAWS]])
        for name in others:
            remark(f"nanoinfer: {name} was left out: it is no folder or zip, or begins with a dot")

        def export() -> list[GradeRecord]:
            records = records_of(chosen, task)
            write_all(records, exports)
            return records

        def look(done: int, begun: float) -> None:
            show(done, begun)
            if gradescope is not None and task.record(chosen[0]).is_file():
                export()  # so that there is a result if the platform's time runs out

        try:
            with _progress(len(chosen), plain) as show:
                grade_class(chosen, task, jobs or cores(), regrade or (), look)
        except KeyboardInterrupt:
            done = sum(record.complete for record in export())
            raise Stopped(f"stopped by Ctrl-C: {done} of {len(chosen)} are done, and kept in {folder}") from None
        _show_points(out, export())


@contextmanager
def _progress(total: int, plain: bool) -> Iterator[Look]:
    """A progress bar with the time left, where a person looks on; else a line for each tenth."""
    if plain or not is_terminal(sys.stderr):
        told = {0}

        def tell(done: int, _: float) -> None:
            if (tenth := done * 10 // total) not in told:
                told.add(tenth)
                remark(f"nanoinfer: {done} of {total} graded")

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("submissions"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, begun: bar.update(task, completed=done + begun)


def _show_points(out: Lines, records: list[GradeRecord]) -> None:
    """A line a submission; then, once, what isolation lacked."""
    for record in records:
        points = f"{record.submission}: {record.points:g} of {record.of:g} in {record.seconds:.0f} s"
        out.line(points + "; not finished" * (not record.complete), "good" if record.complete else "bad")
    lacking = (one.isolation.told() for one in records if one.complete and not one.isolation.whole)
    for told in dict.fromkeys(lacking):
        out.line(f"not fully isolated: {told}", "bad")


def cores() -> int:
    """How many processors this process may use, as far as `--jobs` goes."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 64)


def _own_id(submission: Path) -> str:
    """Of one submission: what Gradescope calls it, else its file's name. Refused where there is none."""
    if not submission.exists():
        raise Refused(f"there is no submission {submission}")
    try:
        told = json.loads((submission.parent / METADATA).read_text(encoding="utf-8"))
        return f"gradescope-{int(told['id'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return submission.resolve().name


def _show_strength(out: Lines, assignment: Assignment, secret: str, ids: list[str]) -> None:
    """A line an exercise: wrong answers that the inputs of these very submissions catch."""
    from nanocourse.grade.variant_strength import variant_strength

    for one in variant_strength(assignment, secret, ids):
        caught = f"{one.caught} of {one.total} known wrong answers caught, on the inputs of {len(ids)} submissions"
        lost = f"; not always: {', '.join(one.missed)}" if one.missed else ""
        edition = f" ({one.edition})" if one.edition else ""
        out.line(f"{one.id}{edition}: {caught}{lost}", "bad" if lost else "good")
