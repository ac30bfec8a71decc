"""A class: it resumes, regrades, goes on where one grader breaks, and leaves what is done when it is stopped."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nanocourse.exercises import chapters, sources, stubs
from nanocourse.grade.assignment import Assignment, Limits, Part
from nanocourse.grade.grade_class import Entry, GraderRefused, Seen, Task, entries, grade_class
from nanocourse.grade.record import GradeRecord
from nanoinfer.cli import run as command

SECRET = "0f" * 32
ROOT = Path(__file__).parents[2]
ASSIGNMENT = Assignment(1, "Chapter 1", (Part("1.3", 6.0),), seeds=2)

# Grades in no time, and does what the submission's only file says.
FAKE = """
import json, os, sys, time
from pathlib import Path
job = json.loads(sys.stdin.readline())
sys.path[:0] = job["path"]
from nanoinfer import __version__
from nanocourse.grade.assignment import Assignment, load_secret, secret_mark
from nanocourse.grade.collect import collect
from nanocourse.grade.record import CheckGrade, ExerciseGrade, GradeRecord, Isolation
asked = Assignment.load(Path(job["assignment"]))
found = collect(Path(job["submission"]))
text = b"".join(found.files.values()).decode()
check = CheckGrade("c", "It holds.", "passed", 6.0, 6.0)
record = GradeRecord(
    job["id"], asked.title, (ExerciseGrade("1.3", "t", "", "f", "", (check,)),), Isolation(("x",)), asked.fingerprint,
    secret_mark(load_secret(Path(job["secret"]))), found.digest, 1, __version__, complete="hang" not in text,
    seconds=time.time(),
)
if "refuse" in text:
    print("no isolation here", file=sys.stderr)
    sys.exit(2)
if "crash" in text:
    print("Fatal: torch", file=sys.stderr)
    os.abort()
record.save(Path(job["record"]))
time.sleep(60 if "hang" in text else 0)
"""


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Graders that grade nothing, and a folder for submissions."""
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr("nanocourse.grade.grade_class._Grader.script", tmp_path / "fake.py")
    monkeypatch.setattr("nanocourse.grade.grade_class.POLL_S", 0.02)
    ASSIGNMENT.save(tmp_path)
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "subs").mkdir()
    return tmp_path


def hand_in(folder: Path, **texts: str) -> list[Entry]:
    for name, text in texts.items():
        (folder / "subs" / name).mkdir(exist_ok=True)
        (folder / "subs" / name / "ex3_last.py").write_text(text)
    return entries(folder / "subs")[0]


def go(folder: Path, chosen: list[Entry], assignment: Assignment = ASSIGNMENT, **more: object) -> list[GradeRecord]:
    task = Task(folder / "assignment.json", folder / "secret.txt", folder / "results")
    return grade_class(chosen, task, assignment, SECRET, **more)  # type: ignore[arg-type]


def test_what_is_a_submission(tmp_path: Path) -> None:
    for name in ("Ann Ünï", "bob", ".hidden", "__MACOSX"):
        (tmp_path / name).mkdir()
    for name in ("bob.zip", "carl.ZIP", "notes.txt", ".DS_Store"):
        (tmp_path / name).touch()
    if sys.platform != "win32":
        (tmp_path / "link").symlink_to(tmp_path / "bob")
    found, others = entries(tmp_path)
    assert [one.id for one in found] == ["Ann Ünï", "bob", "bob.zip", "carl"]
    assert set(others) <= {"link", "notes.txt"}
    with pytest.raises(ValueError, match="holds no submission"):
        entries(tmp_path / "bob")
    with pytest.raises(ValueError, match="is not a folder"):
        entries(tmp_path / "notes.txt")


def test_records_have_names_of_their_own(tmp_path: Path) -> None:
    task = Task(tmp_path, tmp_path, tmp_path)
    names = [task.record(Entry(id, tmp_path)).name for id in ("a b", "a-b", "../../x", "ü" * 200, "", "con", "\ud800")]
    assert len(set(names)) == len(names)
    assert all(len(name) < 80 and "/" not in name and not name.startswith(".") for name in names)


def test_it_resumes_and_regrades(quick: Path) -> None:
    chosen = hand_in(quick, a="1", b="2", c="3")
    first = go(quick, chosen, jobs=2)
    assert [record.points for record in first] == [6, 6, 6]
    assert go(quick, chosen) == first
    hand_in(quick, b="2 anew")
    second = go(quick, chosen)
    assert [one == other for one, other in zip(first, second, strict=True)] == [True, False, True]
    third = go(quick, chosen, regrade=["c"])
    assert [one == other for one, other in zip(second, third, strict=True)] == [True, True, False]
    fourth = go(quick, chosen, regrade=["all"])
    assert not any(one == other for one, other in zip(third, fourth, strict=True))


def test_another_assignment_or_secret_grades_again(quick: Path) -> None:
    chosen = hand_in(quick, a="1")
    first = go(quick, chosen)
    other = replace(ASSIGNMENT, seeds=3)
    other.save(quick)
    second = go(quick, chosen, other)
    assert second != first
    (quick / "secret.txt").write_text("f0" * 32)
    task = Task(quick / "assignment.json", quick / "secret.txt", quick / "results")
    assert grade_class(chosen, task, other, "f0" * 32) != second


def test_a_grader_that_breaks_costs_its_submission_alone(quick: Path) -> None:
    chosen = hand_in(quick, a="1", b="crash", c="3")
    records = go(quick, chosen)
    assert [record.points for record in records] == [6, 0, 6]
    assert [record.complete for record in records] == [True, False, True]
    assert "Fatal: torch" in records[1].notes[0]
    assert records[1].of == 6
    kept: list[int] = []
    go(quick, chosen, look=lambda seen: kept.append(seen.kept))
    assert set(kept) == {2}  # what is not complete is graded again
    hand_in(quick, b="2")
    assert [record.complete for record in go(quick, chosen)] == [True, True, True]


def test_a_grader_over_its_time_is_ended_and_keeps_what_it_wrote(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanocourse.grade.grade_class.GRACE_S", 0.0)
    short = replace(ASSIGNMENT, limits=Limits(submission_s=3.0))
    short.save(quick)
    records = go(quick, hand_in(quick, a="hang", b="2"), short, jobs=2)
    assert [record.points for record in records] == [6, 6]
    assert [record.complete for record in records] == [False, True]
    assert "ended before it was done" in records[0].notes[0]


def test_a_refusal_ends_the_class(quick: Path) -> None:
    with pytest.raises(GraderRefused, match="no isolation here"):
        go(quick, hand_in(quick, a="refuse", b="2"))


def test_a_stop_leaves_what_is_done(quick: Path) -> None:
    """As Ctrl-C does: raised while one hangs. The next run does what is left."""
    chosen = hand_in(quick, a="1", b="hang", c="3")

    def stop(seen: Seen) -> None:
        if seen.done == 1 and seen.fractions.get("b"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(quick, chosen, look=stop)
    hand_in(quick, b="2")
    begun: list[Seen] = []
    records = go(quick, chosen, look=lambda seen: begun.append(replace(seen)))
    assert [record.points for record in records] == [6, 6, 6]
    assert begun[0].kept == 1


def test_progress_counts_what_is_running(quick: Path) -> None:
    seen: list[float] = []
    go(quick, hand_in(quick, a="1", b="2"), look=lambda now: seen.append(now.done + sum(now.fractions.values())))
    assert seen == sorted(seen)
    assert seen[-1] == 2


# The command


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = command(["course", "grade", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_refused_before_anything_is_graded(quick: Path, said: Callable[..., tuple[int, str, str]]) -> None:
    hand_in(quick, a="1")
    subs, asked = quick / "subs", ("--assignment", quick)
    for arguments, says in (
        ((subs, *asked), "give --csv or --junit"),
        ((subs, *asked, "--csv", "a", "--gradescope", "b"), "give --csv or --junit"),
        ((subs, *asked, "--csv", "a", "--submission-id", "b"), "is for one submission"),
        ((subs, "--assignment", subs, "--csv", "a"), "cannot be read"),
        ((quick / "none", *asked, "--csv", "a"), "not a folder of submissions"),
        ((quick / "none", *asked, "--gradescope", "a"), "there is no submission"),
        ((subs, *asked, "--csv", "a", "--regrade", "x"), "--regrade must name"),
    ):
        code, out, err = said(*arguments)
        assert (code, out) == (2, "")
        assert says in err
        assert err.count("\n") == 1
    assert not (quick / "results").exists()


def test_a_missing_layer_is_exit_code_2(quick: Path, said: Callable[..., tuple[int, str, str]]) -> None:
    hand_in(quick, a="refuse")
    code, _, err = said(quick / "subs", "--assignment", quick, "--csv", quick / "o.csv", "--require-isolation")
    assert (code, err) == (2, "nanoinfer: no isolation here\n")
    assert not (quick / "o.csv").exists()


def test_tables_for_a_class(quick: Path, said: Callable[..., tuple[int, str, str]]) -> None:
    hand_in(quick, a="1", b="crash")
    code, out, err = said(
        quick / "subs", "--assignment", quick / "assignment.json", "--csv", quick / "o.csv", "--junit", quick / "o.xml"
    )
    assert code == 0
    assert "a: 6 of 6" in out
    assert "b: 0 of 6" in out
    assert "not finished" in out
    assert "2 of 2 graded" in err
    rows = list(csv.DictReader(io.StringIO((quick / "o.csv").read_text())))
    assert [row["points"] for row in rows] == ["6", "0"]
    assert (quick / "o.xml").read_text().count("<testsuite ") == 2
    assert len(list((quick / "o-results").iterdir())) == 2


def test_one_submission_for_gradescope(quick: Path, said: Callable[..., tuple[int, str, str]]) -> None:
    """The id, and with it the inputs, are the platform's own, told by a file beside the submission."""
    hand_in(quick, a="1")
    (quick / "subs" / "submission_metadata.json").write_text('{"id": 4711}')
    assert said(quick / "subs" / "a", "--assignment", quick, "--gradescope", quick / "r.json")[0] == 0
    made = json.loads((quick / "r.json").read_text())
    assert made["score"] == 6
    assert made["extra_data"]["record"]["submission"] == "gradescope-4711"
    said(quick / "subs" / "a", "--assignment", quick, "--gradescope", quick / "r.json", "--submission-id", "me")
    assert json.loads((quick / "r.json").read_text())["extra_data"]["record"]["submission"] == "me"


@pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")
def test_a_class_end_to_end(tmp_path: Path) -> None:
    """Real graders, from a folder in which a student's torch.py lies: nobody imports it."""
    chapter, exercise = chapters.chapter(1), chapters.exercise("1.3")
    right = sources.whole_file(exercise, exercise.function, sources.function_source(exercise.function))
    subs = tmp_path / "subs"
    (subs / "Ünï stub").mkdir(parents=True)
    (subs / "Ünï stub" / exercise.file).write_text(stubs.stub(exercise, chapter))
    with zipfile.ZipFile(subs / "right.zip", "w") as archive:
        archive.writestr(f"my work/{exercise.file}", b"\xef\xbb\xbf" + right.replace("\n", "\r\n").encode())
        archive.writestr("my work/torch.py", "raise SystemExit")
    (tmp_path / "torch.py").write_text("raise SystemExit")
    ASSIGNMENT.save(tmp_path)
    (tmp_path / "secret.txt").write_text(SECRET)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = "import sys; sys.path.pop(0); from nanoinfer.cli import main; main()"
    arguments = ["course", "grade", "subs", "--assignment", ".", "--csv", "o.csv", "--jobs", "2", "--strength"]
    done = subprocess.run(
        [sys.executable, "-c", start, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    known = sum(not answer.lesson for answer in chapters.exercise("1.3").wrong)
    assert f"{known} of {known} known wrong answers caught, on the inputs of 2 submissions" in done.stdout
    rows = {row["submission"]: row for row in csv.DictReader(io.StringIO((tmp_path / "o.csv").read_text()))}
    assert {name: row["points"] for name, row in rows.items()} == {"Ünï stub": "0", "right": "6"}
    assert all(row["complete"] == "yes" for row in rows.values())
    for file in (tmp_path / "o-results").iterdir():
        assert SECRET not in file.read_text()


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_ctrl_c_exports_what_is_done(quick: Path) -> None:
    hand_in(quick, a="1", b="hang")
    start = (
        "import signal, sys; from nanocourse.grade import grade_class; from pathlib import Path\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background begins without one
        "grade_class._Grader.script = Path(sys.argv.pop(1)); from nanoinfer.cli import main; main()"
    )
    arguments = ["course", "grade", str(quick / "subs"), "--assignment", str(quick), "--csv", str(quick / "o.csv")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", start, str(quick / "fake.py"), *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while len(list((quick / "o-results").glob("*.json"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "1 of 2 are done" in err
    rows = list(csv.DictReader(io.StringIO((quick / "o.csv").read_text())))
    assert [row["complete"] for row in rows] == ["yes", "no"]
