"""`nanoinfer course` as a learner meets it: files, lines, exit codes, and strings as data."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nanocourse.checks.runner import Workers
from nanocourse.exercises import chapters
from nanocourse.exercises.moved import MOVED, told
from nanocourse.grade.assignment import Assignment, Part, new_secret
from nanocourse.grade.grade_class import Entry, Task
from nanocourse.learner import predict
from nanocourse.learner.folder import Folder, Progress, Tries
from nanocourse.learner.predict import Prediction
from nanocourse.learner.quiz import questions
from nanoinfer import cli
from nanoinfer.kernels.available import has_triton
from tests.course.learner_files import Course, Told, answer, own, right_file

CHAPTER = chapters.chapter(1)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_start_writes_stubs_once_and_names_the_next_exercise(here: Path, course: Course) -> None:
    """Chapter 3's text comes to 3.2 first, then to 3.1."""
    assert course("start", "1").code == 0
    files = sorted(path.name for path in (here / "my-course" / "01-naive").iterdir())
    assert files == sorted(exercise.file for exercise in chapters.exercises(CHAPTER))
    changed = here / "my-course" / "01-naive" / files[0]
    changed.write_text("mine\n")
    again = course("start", "1").out
    assert ("kept" in again, "written" in again) == (True, False)
    assert changed.read_text() == "mine\n"
    assert "nanoinfer course check 3.2" in course("start", "3").out
    folder = Folder(here / "my-course")
    progress = folder.load()
    progress.of("3.2").last = "passed"
    folder.save(progress)
    assert "nanoinfer course check 3.1\n" in course("start", "3").out


@pytest.mark.parametrize("id", MOVED)
def test_an_exercise_that_has_moved_is_named_and_nothing_of_before_is_lost(here: Path, course: Course, id: str) -> None:
    """In a learner's folder, and with an assignment and the records that a teacher has of it."""
    (was, now, file), sentence = MOVED[id], told(id)
    exercise, mine = chapters.exercise(now), Folder(here / "my-course")
    (mine.path / was).parent.mkdir(parents=True)
    (mine.path / was).write_text(right_file(exercise))
    passed = hashlib.sha256((mine.path / was).read_bytes()).hexdigest()
    mine.save(Progress({id: Tries(tries=3, passed=passed, last="passed")}))
    for words in (f"start {now[0]}", f"check {id}", "status"):
        assert course(*words.split()).err.count(sentence) == 1
    assert file in sentence
    (mine.path / was).replace(mine.path / file)
    done = course("status")
    assert f"{now} {exercise.spec.title}: passed; tries 3" in done.out
    assert done.err == ""

    Assignment(int(id[0]), "An older one", (Part(id),)).save(here)
    (here / "secret.txt").write_text(new_secret())
    (here / "class" / "anna").mkdir(parents=True)
    record = Task(here, here / "results").record(Entry("anna", here / "class" / "anna"))
    record.parent.mkdir()
    record.write_text("a grade of before")
    graded = course("grade", "class", "--assignment", ".", "--csv", "out.csv", "--results", "results")
    assert sentence in graded.err
    assert record.read_text() == "a grade of before"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_folder_is_ignored_by_git(course: Course) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    assert "--mine 'some where'\n" in course("start", "1", "--mine", "some where").out
    seen = subprocess.run(["git", "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
    assert seen == ""


def test_check_from_the_first_try_to_the_last(here: Path, course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stubs, wrong, then right: what is said, and what is remembered. No worker is started for a stub."""
    course("start", "1")
    with monkeypatch.context() as patch:
        patch.setattr(Workers, "take", None)
        stub = course("check", "1.3", "1.2")
    assert stub.code == 1
    assert stub.out.splitlines()[::2] == ["1.2 The block: not begun", "1.3 The logits that count: not begun"]
    assert "    ex3_last.py is the untouched stub\n" in stub.out
    own(here, "1.3", answer("1.3", "last-column"))
    first = course("check", "1", "1.3", "--receipt")
    assert first.code == 1
    for part in ("failed", "ragged", "lengths = ", "At row ", "expected ", "got ", "Receipt: ex3_last.py "):
        assert part in first.out
    assert "    Failed as well: poisoned-padding, any-batch\n" in first.out
    assert 'A known mistake, last-column. It assumes: "A row\'s last token stands in the last column."' in first.out
    own(here, "1.3", answer("1.3", "by-gather"))
    third = course("check", "1.3", "--receipt")
    assert third.code == 0
    assert "4 registered, 4 collected, 4 run, 4 passed" in " ".join(third.out.split())
    assert course("check", "1.3").code == 0
    assert "1.3 The logits that count: passed; tries 2" in course("status").out  # the stub was none, nor is the same
    path = own(here, "1.3", answer("1.3", "row-by-row"))
    assert "1.3 The logits that count: changed since it passed" in course("status").out
    (line,) = course("check", "1.3", "--json").out.splitlines()
    record = json.loads(line)
    assert (record["schema"], record["status"], record["id"]) == ("nanoinfer.course.result", "passed", "1.3")
    path.unlink()
    assert "1.3 The logits that count: no file" in course("status").out
    assert "there is no file ex3_last.py: `nanoinfer course start 1` writes its stub" in course("check", "1.3").out


def test_the_course_is_found_from_within(here: Path, course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a repository is: no folder is begun inside of it."""
    course("start", "1")
    monkeypatch.chdir(here / "my-course" / "01-naive")
    assert "1.3 The logits that count: not begun" in course("check", "1.3").out
    assert course("start", "2").code == 0
    assert (here / "my-course" / "02-kv-cache").is_dir()
    assert not list((here / "my-course").glob("*/my-course"))


def test_what_an_answer_prints_is_shown_and_breakpoint_says_what_to_do(here: Path, course: Course) -> None:
    """A right one's first lines, and a wrong one's on the input that is shown."""
    body = right_file(chapters.exercise("1.3"))
    own(here, "1.3", body.replace("    rows =", "    print('I was here')\n    rows =", 1))
    passed = course("check", "1.3")
    assert passed.code == 0
    assert "    Your code printed:\n      I was here\n" in passed.out
    own(here, "1.3", body.replace("    rows =", "    print(lengths.tolist())\n    rows =", 1).replace("- 1]", "- 2]"))
    failed = course("check", "1.3").out
    (lengths,) = re.findall(r"lengths = (.*)", failed)
    assert f"    Your code printed, on that input:\n      {lengths}\n" in failed
    assert failed.endswith(f"{lengths}\n")
    assert "This input is" not in failed
    own(here, "1.3", body.replace("    rows =", "    breakpoint()\n    rows =", 1))
    assert "no debugger here: print, which the check shows" in " ".join(course("check", "1.3").out.split())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends what has a session of its own")
def test_what_a_stub_begins_ends_with_the_check(here: Path, course: Course) -> None:
    begin = "import subprocess\nprint('pid', subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    own(here, "1.3", f"{begin}\ndef last_logits(*args): pass\n")
    (pid,) = re.findall(r"pid (\d+)", course("check", "1.3").out)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_learners_strings_are_data(here: Path, course: Course) -> None:
    hostile = "\x1b[2J[bold red]x[/] \x00 \u202e :smile: \x9b31m"
    own(here, "1.3", f"def last_logits(*args):\n    print({hostile!r})\n    raise ValueError({hostile!r})\n")
    out = course("check", "1.3").out
    assert "\\x1b[2J[bold red]x[/] \\x00 \\u202e :smile: \\x9b31m" in out
    assert not set("\x1b\x00\u202e\x9b") & set(out)


def test_an_edition_is_kept_from_start_to_check(here: Path, course: Course) -> None:
    folder = Folder(here / "my-course")
    folder.save(Progress(editions={"1.3": "time-first"}))
    folder.start(CHAPTER)
    stub = (here / "my-course" / "01-naive" / "ex3_last.py").read_text()
    assert "hidden (T, B, C)" in stub
    own(here, "1.3", answer("1.3", "row-by-row"))
    assert course("check", "1.3").code == 1  # right in the plain form
    own(here, "1.3", right_file(chapters.exercise("1.3").as_edition("time-first")))
    done = course("check", "1.3", "--receipt")
    assert done.code == 0
    assert "edition time-first" in " ".join(done.out.split())


def test_hints_come_one_after_the_other(here: Path, course: Course) -> None:
    texts = [course("hint", "1.4").out for _ in range(4)]
    assert [text.split("\n")[0] for text in texts] == [f"1.4 The filters, hint {n} of 3" for n in (1, 2, 3, 3)]
    assert Folder(here / "my-course").load().of("1.4").hints == 3
    (here / "full" / "progress.json").mkdir(parents=True)  # nothing can be saved in its place
    with pytest.warns(UserWarning, match="this is not noted"):
        assert "hint 1 of 3" in course("hint", "1.4", "--mine", "full").out


def test_a_quiz_asks_again_and_is_remembered(here: Path, course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = questions(CHAPTER)
    right = (1 + [option.correct for option in question.answers].index(True) for question in asked)
    done = course("quiz", "1", "--answers", ",".join(map(str, right)))
    assert done.out.endswith(f"{len(asked)} of {len(asked)} right.\n")
    assert Folder(here / "my-course").load().quiz == {"1": {"right": len(asked), "of": len(asked)}}
    monkeypatch.setattr(sys, "stdin", io.StringIO("x\n1\n"))  # one answer, and the end of the input
    assert course("quiz", "1").out.endswith("of 1 right.\n")
    assert Folder(here / "my-course").load().quiz["1"]["of"] == 1


def test_predictions_stand_beside_bound_and_measurement(
    here: Path, course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, measured = lambda device: 8.0, lambda device: 6.0
    told = Prediction("p", "How many?", "times", bound, "by counting", measured, lambda b, m: f"{b - m:g} less")
    monkeypatch.setattr(predict, "predictions", lambda chapter: (told, told))
    done = course("predict", "1", "--guess", "12,3x")
    assert "guess 12, by arithmetic 8, measured 6 times" in done.out
    assert "The difference: 2 less" in done.out
    assert done.out.endswith("Your guesses so far: 2, median error: a factor of 2.00 (1 is exact).\n")
    assert [one["guess"] for one in Folder(here / "my-course").load().predictions] == [12, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("check x", "an exercise is a chapter and a number, as 1.4, not 'x'"), ("check 1", "nanoinfer course start 1"),
        ("check 1.1 1.99", "chapter 1 has the exercises 1.1 to 1.8, and no '99'"),
        ("check 1 --device tpu", "device must be cpu or cuda, not 'tpu'"), ("quiz 1 --answers 1,x", "there are"),
        ("predict 1 --guess 1", "there are 4 questions"), ("predict 1 --guess 1,0,1,1", "a number above 0"),
        ("predict 1 --guess 1,nan,1,1", "above 0, not 'nan'"), ("release 9 --to x", "chapter must be one of"),
        ("release 1 --to x --only 1.9", "--only must name"), ("start 1 --mine=", "--mine must name a folder"),
    ],
)  # fmt: skip
def test_refused_in_one_sentence(course: Course, arguments: str, said: str) -> None:
    result = course(*arguments.split())
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert said in result.err


@pytest.mark.parametrize("content", ["", "[]", '{"schema": "nanoinfer.course.progress"}'])
def test_a_broken_progress_file_is_named(here: Path, course: Course, content: str) -> None:
    (here / "my-course").mkdir()
    (here / "my-course" / "progress.json").write_text(content)
    result = course("hint", "1.1")
    assert result.code == 2
    assert "progress.json is not a readable progress file" in result.err
    assert (here / "my-course" / "progress.json").read_text() == content


def generate(*arguments: str) -> Told:
    """`nanoinfer generate` in a process of its own: the engine is changed in it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nanoinfer", "generate", "Once upon", "--device", "cpu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return Told(done.returncode, done.stdout, done.stderr)


def test_ones_own_functions_run_in_the_engine(here: Path) -> None:
    own(here, "1.1", answer("1.1", "query-by-query"))
    own(here, "1.3", answer("1.3", "last-column"))
    own(here, "1.7", answer("1.7", "in-fractions"))
    options = ["-n", "6", "--seed", "3"]
    mine = generate(*options, "--mine", "my-course")
    assert mine.code == 0, mine.err
    assert mine.out == generate(*options, "--engine", "naive", "-q").out
    assert "1.1 Attention with given positions: yours" in mine.err
    assert "nanoinfer: your 1.1 ran in 6 of 6 steps\n" in mine.err
    assert "1.3 The logits that count: the reference's (failed)" in mine.err
    assert "1.7 What a pass costs: the reference's (it has no place in the engine)" in mine.err
    assert "the same tokens" in mine.err
    progress = Folder(here / "my-course").load()
    assert [(progress.of(id).last, progress.of(id).tries) for id in ("1.1", "1.3")] == [("passed", 1), ("failed", 1)]


def test_what_has_passed_is_not_checked_again_and_what_is_not_begun_is_one_line(here: Path, course: Course) -> None:
    """Also: where a cache takes over from the learner's attention, that is said."""
    course("start", "1")
    passed = own(here, "1.1", answer("1.1", "no-mask"))  # a check would find it
    folder = Folder(here / "my-course")
    digest = hashlib.sha256(passed.read_bytes()).hexdigest()
    folder.save(Progress({"1.1": Tries(1, digest, "passed")}))
    mine = generate("-n", "4", "--greedy", "--engine", "dense", "--mine", "my-course")
    assert "nanoinfer: 1.1 Attention with given positions: yours\n" in mine.err
    assert "nanoinfer: not begun, so the reference's: 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8\n" in mine.err
    assert "nanoinfer: your 1.1 ran in 1 of 4 steps: prefill alone\n" in mine.err


def test_ones_own_recorded_steps_run_without_a_gpu(here: Path) -> None:
    """By the stand-in, which is said, and the warning that a CPU records none is not; -v counts the learner's run."""
    own(here, "4.4", answer("4.4", "by-doublings"))
    mine = generate("-n", "6", "--greedy", "--engine", "paged-graph", "-v", "--mine", "my-course")
    assert mine.code == 0, mine.err
    assert "steps were recorded by the stand-in: 6 of 6 decode steps were replayed" in mine.err
    assert "a CPU records no steps" not in mine.err
    assert re.search(r"^replayed_steps +6$", mine.err, re.M)
    assert "the same tokens" in mine.err


@pytest.mark.skipif(not has_triton(), reason="there are no wheels of Triton here")
@pytest.mark.long
def test_a_kernel_of_ones_own_runs_without_a_gpu(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command chooses Triton's interpreter, before later chapters import Triton; where it passed, 3.7 is idle."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    own(here, "3.6", answer("3.6", chapters.exercise("3.6").right[0].name))
    own(here, "3.7", answer("3.7", chapters.exercise("3.7").right[0].name))
    options = ["-n", "2", "--greedy", "--mine", "my-course"]
    mine = generate(*options)
    assert mine.code == 0, mine.err
    assert "3.6 The kernel over one row's pages: yours" in mine.err
    assert "the same tokens" in mine.err
    assert "never called: your 3.6 does not split" in mine.err
    own(here, "3.6", answer("3.6", "no-tail-mask"))
    mine = generate(*options)
    assert "3.6 The kernel over one row's pages: the reference's (failed)" in mine.err
    assert "never called" not in mine.err  # 3.7 has its place again, and nothing is interpreted


def test_mine_without_anything_that_passes_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(here, "1.7", answer("1.7", "in-fractions"))
    assert cli.run(["generate", "x", "--mine", "my-course"]) == 2
    assert "no function that passes its checks and has a place in the engine" in capsys.readouterr().err
    assert cli.run(["generate", "x", "--mine", "nowhere"]) == 2
    assert "nowhere has no exercise's file" in capsys.readouterr().err
