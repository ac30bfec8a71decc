"""A class: it resumes, regrades, goes on where one grader breaks, and leaves what is done when it is stopped."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanocourse.exercises import chapters, stubs
from nanocourse.grade.assignment import Assignment, Limits, Part
from nanocourse.grade.grade_class import Entry, GraderRefused, Task, entries, grade_class
from nanocourse.grade.record import GradeRecord
from tests.course.attack_runs import ATTACKS
from tests.course.learner_files import Course, Told, right_file

SECRET = "0f" * 32
ROOT = Path(__file__).parents[2]
ASSIGNMENT = Assignment(1, "Chapter 1", (Part("1.3", 6.0),), seeds=2)

# Grades in no time, and does what the submission's only file says.
FAKE = """
import json, os, signal, sys, time
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
    job["id"], asked.title, (ExerciseGrade("1.3", "t", "", "f", "", (check,)),),
    Isolation(("x",), (("landlock", "no such kernel"),) if "layer" in text else ()), asked.fingerprint,
    secret_mark(load_secret(Path(job["assignment"]))), found.digest, 1, __version__, complete="hang" not in text,
    seconds=time.time(),
)
if "refuse" in text:
    print("no isolation here", file=sys.stderr)
    sys.exit(2)
if "killed" in text:
    os.kill(os.getpid(), signal.SIGKILL)
if "crash" in text:
    print("Fatal: torch", file=sys.stderr)
    os.abort()
record.save(Path(job["record"]))
if "ctrl-c" in text:
    os.kill(os.getppid(), signal.SIGINT)
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


def go(folder: Path, chosen: list[Entry], **more: Any) -> list[GradeRecord]:
    return grade_class(chosen, Task(folder / "assignment.json", folder / "results"), **more)


def test_what_is_a_submission(tmp_path: Path) -> None:
    for name in ("Ann Ünï", "bob", ".hidden", "__MACOSX"):
        (tmp_path / name).mkdir()
    for name in ("bob.zip", "carl.ZIP", "notes.txt", ".DS_Store"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "bob")
    found, others = entries(tmp_path)
    assert [one.id for one in found] == ["Ann Ünï", "bob", "bob.zip", "carl"]
    assert others == [".hidden", "link", "notes.txt"]
    with pytest.raises(ValueError, match="holds no submission"):
        entries(tmp_path / "bob")
    with pytest.raises(ValueError, match="is not a folder"):
        entries(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    "names", [("anna.zip", "anna.ZIP"), ("zoe\u0301", "zo\u00e9"), ("Bob", "bob"), ("bo\x01b", "bo\x02b")]
)
def test_two_submissions_with_one_name_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        (tmp_path / name).touch() if "zip" in name.casefold() else (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="would share a record") as refused:
        entries(tmp_path)
    assert all(ascii(name) in str(refused.value) for name in names)


def test_records_have_names_of_their_own(tmp_path: Path) -> None:
    task = Task(tmp_path, tmp_path)
    names = [task.record(Entry(id, tmp_path)).name for id in ("a b", "a-b", "../../x", "ü" * 200, "", "con", "\ud800")]
    assert len(set(names)) == len(names)
    assert all(len(name) < 80 and "/" not in name and not name.startswith(".") for name in names)


def test_it_resumes_and_regrades(quick: Path) -> None:
    """What has changed is graded again, and what is asked for."""
    chosen = hand_in(quick, a="1", b="2", c="3")
    before = go(quick, chosen, jobs=2)
    assert [record.points for record in before] == [6, 6, 6]
    for text, regrade, same in (
        ("2", [], [True, True, True]),
        ("2 anew", [], [True, False, True]),
        ("2 anew", ["c"], [True, True, False]),
        ("2 anew", ["all"], [False, False, False]),
    ):
        hand_in(quick, b=text)
        now = go(quick, chosen, regrade=regrade)
        assert [one == other for one, other in zip(before, now, strict=True)] == same
        before = now


def test_another_assignment_or_secret_grades_again(quick: Path) -> None:
    chosen = hand_in(quick, a="1")
    records = [go(quick, chosen)]
    replace(ASSIGNMENT, seeds=3).save(quick)
    records.append(go(quick, chosen))
    (quick / "secret.txt").write_text("f0" * 32)
    assert go(quick, chosen) != records[1] != records[0]


def test_a_grader_that_breaks_costs_its_submission_alone(quick: Path) -> None:
    chosen = hand_in(quick, a="1", b="crash", c="3")
    records = go(quick, chosen)
    assert [record.points for record in records] == [6, 0, 6]
    assert [record.complete for record in records] == [True, False, True]
    assert records[1].notes == ("grading ended before it was done: Fatal: torch",)
    assert records[1].of == 6
    path = Task(quick, quick / "results").record(chosen[1])
    path.write_text(path.read_text().replace("torch", "before"))
    assert go(quick, chosen) == records  # what is not complete is graded again, and the others are not
    hand_in(quick, b="2")
    assert [record.complete for record in go(quick, chosen)] == [True, True, True]


def test_a_grader_over_its_time_is_ended_and_keeps_what_it_wrote(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanocourse.grade.grade_class.GRACE_S", 0.0)
    replace(ASSIGNMENT, limits=Limits(submission_s=3.0)).save(quick)
    records = go(quick, hand_in(quick, a="hang", b="2"), jobs=2)
    assert [record.points for record in records] == [6, 6]
    assert [record.complete for record in records] == [False, True]
    assert "ended before it was done" in records[0].notes[0]


def test_it_says_that_grading_again_may_help_only_where_it_may(quick: Path) -> None:
    crashed, killed = go(quick, hand_in(quick, a="crash", b="killed"))
    assert "again" not in crashed.notes[0]
    assert "the next run grades it again" in killed.notes[0]


# The command


def grade(course: Course, folder: Path, *options: object, of: str = "") -> Told:
    """Grade the submissions of a folder, or one of them."""
    return course("grade", folder / "subs" / of, "--assignment", folder, *options)


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_refused_before_anything_is_graded(quick: Path, course: Course) -> None:
    hand_in(quick, a="1")
    for options, of, says in (
        (("--csv", "a", "--gradescope", "b"), "", "give --csv or --junit"),
        (("--csv", "a", "--submission-id", "b"), "", "is for one submission"),
        (("--assignment", quick / "subs", "--csv", "a"), "", "cannot be read"),
        (("--csv", "a"), "none", "not a folder of submissions"),
        (("--gradescope", "a"), "none", "there is no submission"),
        (("--csv", "a", "--regrade", "x"), "", "--regrade must name"),
        (("--csv", "."), "", "cannot be written"),
    ):
        told = grade(course, quick, *options, of=of)
        assert (told.code, told.out, told.err.count("\n")) == (2, "", 1)
        assert says in told.err
    assert not (quick / "results").exists()


def test_a_missing_layer_ends_the_class_with_exit_code_2(quick: Path, course: Course) -> None:
    with pytest.raises(GraderRefused, match="no isolation here"):
        go(quick, hand_in(quick, a="refuse", b="2"))
    told = grade(course, quick, "--csv", quick / "o.csv")
    assert (told.code, told.err) == (2, "nanoinfer: no isolation here\n")
    assert not (quick / "o.csv").exists()


def test_what_isolation_lacks_is_said_once(quick: Path, course: Course) -> None:
    hand_in(quick, a="layer", b="layer", c="3")
    told = grade(course, quick, "--csv", quick / "o.csv", "--trust-students")
    assert told.out.splitlines()[3:] == ["not fully isolated: isolated by x; missing: landlock (no such kernel)"]


def test_one_submission_for_gradescope(quick: Path, course: Course) -> None:
    """The id, and with it the inputs, are the platform's own, told by a file beside the submission."""
    hand_in(quick, a="1")
    (quick / "subs" / "submission_metadata.json").write_text('{"id": 4711}')
    for options, id in (((), "gradescope-4711"), (("--submission-id", "me"), "me")):
        assert grade(course, quick, "--gradescope", quick / "r.json", *options, of="a").code == 0
        made = json.loads((quick / "r.json").read_text())
        assert made["score"] == 6
        assert made["extra_data"]["record"]["submission"] == id


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_ctrl_c_exports_what_is_done_and_the_next_run_does_the_rest(quick: Path, course: Course) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins without one
    chosen = hand_in(quick, a="1", b="hang ctrl-c", c="3")
    to = ("--csv", quick / "o.csv", "--junit", quick / "o.xml", "--results", quick / "results", "--jobs", "1")
    told = grade(course, quick, *to)
    assert told.code == 130
    assert "1 of 3 are done" in told.err
    assert [row["complete"] for row in table(quick / "o.csv")] == ["yes", "no", "no"]
    hand_in(quick, b="crash")
    first = Task(quick, quick / "results").record(chosen[0])
    before = first.read_text()
    told = grade(course, quick, *to)
    assert all(part in told.out for part in ("a: 6 of 6", "b: 0 of 6", "not finished"))
    assert "3 of 3 graded" in told.err
    assert first.read_text() == before
    assert (quick / "o.xml").read_text().count("<testsuite ") == 3


@pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")
def test_a_class_end_to_end(tmp_path: Path) -> None:
    """Real graders, beside a hostile submission, and from a folder in which a student's torch.py lies."""
    exercise = chapters.exercise("1.3")
    for name in ("Ünï stub", "hostile"):
        (tmp_path / "subs" / name).mkdir(parents=True)
    (tmp_path / "subs" / "Ünï stub" / exercise.file).write_text(stubs.stub(exercise, chapters.chapter(1)))
    attack = (ATTACKS / "leaves.py").read_text(encoding="utf-8").replace("attention(", "last_logits(")
    (tmp_path / "subs" / "hostile" / exercise.file).write_text(attack)
    with zipfile.ZipFile(tmp_path / "subs" / "right.zip", "w") as archive:
        right = b"\xef\xbb\xbf" + right_file(exercise).replace("\n", "\r\n").encode()
        archive.writestr(f"my work/{exercise.file}", right)
        for name in ("torch.py", "json.py", "nanoinfer.py", "sitecustomize.py"):
            archive.writestr(f"my work/{name}", "raise SystemExit")
            (tmp_path / name).write_text("raise SystemExit")
    ASSIGNMENT.save(tmp_path)
    (tmp_path / "secret.txt").write_text(SECRET)
    start = "import sys; sys.path.pop(0); from nanoinfer.cli import main; main()"
    arguments = ["course", "grade", "subs", "--assignment", ".", "--csv", "o.csv", "--jobs", "2", "--strength"]
    arguments.append("--trust-students")  # a machine that tests may lack a layer
    command, environment = [sys.executable, "-c", start, *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    known = len(exercise.real_wrong)
    assert f"{known} of {known} known wrong answers caught, on the inputs of 3 submissions" in done.stdout
    rows = {row["submission"]: (row["points"], row["complete"]) for row in table(tmp_path / "o.csv")}
    assert rows == {"Ünï stub": ("0", "yes"), "hostile": ("0", "yes"), "right": ("6", "yes")}
    assert not [file for file in (tmp_path / "o-results").iterdir() if SECRET in file.read_text()]
