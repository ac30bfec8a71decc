"""Grading a class on one machine: a process for each submission, several at once, and records that survive a stop.

Nothing here loads torch. A record is kept if it is complete and belongs to the same files, assignment and secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO

from nanocourse.checks.worker_main import import_path
from nanocourse.grade.assignment import Assignment, load_secret, secret_mark
from nanocourse.grade.collect import SKIPPED, collect, printable
from nanocourse.grade.record import CheckGrade, ExerciseGrade, GradeRecord
from nanoinfer import __version__

GRACE_S = 90.0  # beyond a submission's own limit, until its grader is ended: starting, looking up a mistake
POLL_S = 0.2
KILLED = (-9, -15, 143)  # exit codes: by SIGKILL, and by SIGTERM before and after it is handled
ALL = "all"
Look = Callable[[int, float], None]


class GraderRefused(ValueError):
    """A grader refused to grade; the message is one sentence."""


@dataclass(frozen=True)
class Entry:
    """One submission. id: its name in every table; its hidden inputs are made from it."""

    id: str
    path: Path


@dataclass(frozen=True)
class Task:
    """What submissions have in common. path: of the assignment, which the secret lies beside. results: for records.

    hidden: more paths that no worker may read. patience: how many times its limit a submission may take by the clock on
    the wall, on a machine with other work.
    """

    path: Path
    results: Path
    require_isolation: bool = False
    hidden: tuple[Path, ...] = ()
    patience: float = 1.0

    @cached_property
    def assignment(self) -> Assignment:
        """ValueError where it cannot be read."""
        return Assignment.load(self.path)

    @cached_property
    def secret(self) -> str:
        """ValueError where it cannot be read."""
        return load_secret(self.path)

    def record(self, entry: Entry) -> Path:
        """Where a submission's record is stored: a readable name, made unique by the id's hash."""
        name = re.sub(r"[^\w.-]+", "-", unicodedata.normalize("NFKD", entry.id)).strip(".-")[:60] or "submission"
        return self.results / f"{name}-{hashlib.sha256(entry.id.encode('utf-8', 'replace')).hexdigest()[:8]}.json"


def entries(folder: Path) -> tuple[list[Entry], list[str]]:
    """The submissions in a folder, each a folder or zip; and names of what else is there.

    ValueError if there is none, or if two have one name where case, or how accents are encoded, does not count.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder of submissions")
    found, others = list[Path](), list[str]()
    for path in sorted(folder.iterdir()):
        name = unicodedata.normalize("NFC", path.name)
        handed_in = path.is_dir() or path.suffix.casefold() == ".zip"
        if name.casefold() in SKIPPED or (name.startswith(".") and not handed_in):
            continue
        if path.is_symlink() or name.startswith(".") or not handed_in:
            others.append(printable(name))
        else:
            found.append(path)
    if not found:
        raise ValueError(f"{folder} holds no submission: each is a folder or a zip")
    by_id: dict[str, Entry] = {}
    for path in sorted(found, key=Path.is_dir, reverse=True):  # a zip beside a folder of its name keeps its ending
        id = unicodedata.normalize("NFC", path.name if path.is_dir() else path.stem)
        id += ".zip" * (not path.is_dir() and _folded(id) in by_id and by_id[_folded(id)].path.is_dir())
        other = by_id.setdefault(_folded(id), Entry(id, path)).path
        if other != path:
            raise ValueError(f"{other.name!a} and {path.name!a} would share a record: rename one of them")
    return sorted(by_id.values(), key=lambda one: one.path), others


def _folded(id: str) -> str:
    """A submission's id as tables show it, without case, in one encoding of its accents."""
    return unicodedata.normalize("NFC", printable(id).casefold())


def grade_class(
    chosen: Sequence[Entry],
    task: Task,
    jobs: int = 1,
    regrade: Iterable[str] = (),
    look: Look = lambda done, begun: None,
) -> list[GradeRecord]:
    """Records of all submissions, in order. Finished ones are on disk at any time; Ctrl-C ends the graders.

    look: is told how many are done, and how much of others. GraderRefused if a grader refuses, because a layer of
    isolation is missing.
    """
    task.results.mkdir(parents=True, exist_ok=True, mode=0o700)
    again, running = set(regrade), list[_Grader]()
    waiting = [one for one in chosen if not again.isdisjoint((ALL, one.id)) or not _done(one, task)]
    for entry in waiting:
        task.record(entry).unlink(missing_ok=True)
    done = len(chosen) - len(waiting)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_Grader(waiting.pop(0), task))
            time.sleep(POLL_S)
            for grader in [one for one in running if one.ended()]:
                running.remove(grader)
                grader.settle()
                done += 1
            look(done, math.fsum(one.fraction() for one in running))
    finally:
        for grader in running:
            grader.end()
    return records_of(chosen, task)


def records_of(chosen: Sequence[Entry], task: Task) -> list[GradeRecord]:
    """What there is of each submission so far; an empty record for those not begun."""
    return [_read(task.record(entry)) or _nothing(entry, task.assignment) for entry in chosen]


class _Grader:
    """One grader process."""

    script = Path(__file__).with_name("grader_process.py")

    def __init__(self, entry: Entry, task: Task) -> None:
        self.entry, self.record, self._assignment = entry, task.record(entry), task.assignment
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by `settle`
        hidden = (*task.hidden, task.results, entry.path.parent)
        job = {
            "path": import_path(), "submission": str(entry.path.resolve()), "id": entry.id,
            "assignment": str(task.path.resolve()), "record": str(self.record.resolve()),
            "require_isolation": task.require_isolation, "patience": task.patience,
            "hidden": [str(path.resolve()) for path in hidden],
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(self.script)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=self._errors, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(json.dumps(job).encode() + b"\n")
        self._limit_s = task.patience * task.assignment.limits.submission_s + GRACE_S
        self._deadline, self._late = time.monotonic() + self._limit_s, False

    def ended(self) -> bool:
        """Whether it has ended. One that exceeds its time is ended here."""
        if self._process.poll() is None and time.monotonic() > self._deadline:
            self._late = True
            self.end()
        return self._process.poll() is not None

    def fraction(self) -> float:
        """The fraction of its checks that are decided."""
        now = _read(self.record)
        checks = [check for one in now.exercises for check in one.checks] if now else []
        return sum(check.status != "not run" for check in checks) / len(checks) if checks else 0.0

    def settle(self) -> None:
        """After its end: an incomplete record gets the reason. GraderRefused if the grader refused."""
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        self._errors.close()
        if self._process.returncode == 2:
            raise GraderRefused(said[-1] if said else "a grader refused to grade")
        now = _read(self.record)
        if now is None or not now.complete:
            note = printable(f"grading ended before it was done: {self._why(said)}")
            now = now or _nothing(self.entry, self._assignment)
            replace(now, notes=(*now.notes, note)).save(self.record)

    def _why(self, said: list[str]) -> str:
        """Why it ended early, and whether it may help to grade again."""
        if self._late:
            return f"it took longer than {self._limit_s:.0f} s"
        if self._process.returncode in KILLED:
            return "somebody ended it, or this machine is short of memory; the next run grades it again"
        return said[-1] if said else f"exit code {self._process.returncode}"

    def end(self) -> None:
        """Terminate it first: it has workers and folders to clear away. Then kill it."""
        self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _done(entry: Entry, task: Task) -> bool:
    """Whether a submission's record is complete and belongs to the present files."""
    now = _read(task.record(entry))
    if now is None or not now.complete or (task.require_isolation and not now.isolation.whole):
        return False
    same = task.assignment.fingerprint, secret_mark(task.secret), __version__
    return (now.assignment, now.secret, now.version) == same and now.files == collect(entry.path).digest


def _read(path: Path) -> GradeRecord | None:
    try:
        return GradeRecord.load(path)
    except ValueError:
        return None


def _nothing(entry: Entry, assignment: Assignment) -> GradeRecord:
    """The record of a submission of which nothing could be graded."""
    grades = []
    for part in assignment.parts:
        check = CheckGrade("graded", "The exercise was graded.", "not run", 0.0, part.points)
        grades.append(ExerciseGrade(part.id, "", part.edition, "", "", (check,)))
    return GradeRecord(printable(entry.id), assignment.title, tuple(grades))
