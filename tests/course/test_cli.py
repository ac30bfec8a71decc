"""`nanoinfer course` and `generate --mine` as a learner meets them: files, lines, exit codes, and strings as data."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from nanocourse.cli.console import Lines
from nanocourse.exercises import chapters
from nanocourse.learner import predict, report
from nanocourse.learner.folder import Folder, Progress
from nanocourse.learner.predict import Prediction
from nanoinfer import cli
from nanoinfer.cli.terminal import Output
from nanoinfer.devices import has_triton
from tests.course.learner_files import answer

CHAPTER = chapters.chapter(1)


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(capsys: pytest.CaptureFixture[str], *arguments: str) -> Result:
    capsys.readouterr()
    code = cli.run(["course", *arguments])
    return Result(code, *capsys.readouterr())


def own(folder: Path, id: str, content: str) -> Path:
    """Put a learner's answer into their folder."""
    exercise = chapters.exercise(id)
    path = Folder(folder / "my-course").file(chapters.chapter(exercise.chapter), exercise)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def test_start_writes_stubs_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = invoke(capsys, "start", "1")
    assert first.code == 0
    files = sorted(path.name for path in (here / "my-course" / "01-naive").iterdir())
    assert files == sorted(exercise.file for exercise in chapters.exercises(CHAPTER))
    changed = here / "my-course" / "01-naive" / files[0]
    changed.write_text("mine\n")
    again = invoke(capsys, "start", "1")
    assert "kept" in again.out
    assert "written" not in again.out
    assert changed.read_text() == "mine\n"
    assert "MIT No Attribution" in (here / "my-course" / "LICENSE").read_text()


@pytest.mark.parametrize(("chapter", "first"), [("1", "1.1"), ("2", "2.1"), ("3", "3.2"), ("4", "4.2")])
def test_start_names_the_exercise_that_the_text_comes_to_first(
    here: Path, capsys: pytest.CaptureFixture[str], chapter: str, first: str
) -> None:
    assert f"nanoinfer course check {first}" in invoke(capsys, "start", chapter).out


def test_start_goes_on_behind_what_is_solved(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Chapter 3's text comes to 3.2 first, then to 3.1."""
    folder = Folder(here / "my-course")
    progress = folder.load()
    progress.of("3.2").last = "passed"
    folder.save(progress)
    assert "ex1_append.py (section 4).\nThen: nanoinfer course check 3.1\n" in invoke(capsys, "start", "3").out


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_folder_is_ignored_by_git(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    invoke(capsys, "start", "1", "--mine", "somewhere")
    seen = subprocess.run(["git", "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
    assert seen == ""


def test_check_from_the_first_try_to_the_last(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stub, wrong, then right: what is said, and what is remembered."""
    invoke(capsys, "start", "1")
    stub = invoke(capsys, "check", "1.3")
    assert stub.code == 1
    assert stub.out.startswith("1.3 The logits that count: not begun\n")
    own(here, "1.3", answer("1.3", "last-column"))
    first = invoke(capsys, "check", "1", "1.3")
    assert first.code == 1
    for part in ("failed", "ragged", "lengths = ", "At row ", "expected ", "got ", "Receipt: ex3_last.py "):
        assert part in first.out
    assert 'A known mistake, last-column. It assumes: "A row\'s last token stands in the last column."' in first.out
    own(here, "1.3", answer("1.3", "by-gather"))
    third = invoke(capsys, "check", "1.3")
    assert third.code == 0
    assert "4 registered, 4 collected, 4 run, 4 passed" in " ".join(third.out.split())
    status = invoke(capsys, "status")
    assert "1.3 The logits that count: passed; tries 3" in status.out
    path = own(here, "1.3", answer("1.3", "row-by-row"))
    assert "1.3 The logits that count: changed since it passed" in invoke(capsys, "status").out
    path.unlink()
    assert "1.3 The logits that count: no file" in invoke(capsys, "status").out


def test_an_unknown_mistake_is_said_to_be_unknown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(here, "1.3", "def last_logits(hidden, lengths, wte, vocab_size):\n    return 5\n")
    assert "This is none of the known mistakes." in invoke(capsys, "check", "1.3").out


def test_json_is_one_object_a_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(here, "1.3", answer("1.3", "row-by-row"))
    (line,) = invoke(capsys, "check", "1.3", "--json").out.splitlines()
    record = json.loads(line)
    assert (record["schema"], record["status"], record["id"]) == ("nanoinfer.course.result", "passed", "1.3")
    assert record["receipt"]["files"][0][0] == "ex3_last.py"


HOSTILE = "\x1b[2J[bold red]x[/] \x00 \u202e :smile: \x9b31m"


def test_a_learners_strings_are_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(here, "1.3", f"def last_logits(*args):\n    print({HOSTILE!r})\n    raise ValueError({HOSTILE!r})\n")
    for options in ([], ["--plain"]):
        out = invoke(capsys, "check", "1.3", *options).out
        assert "\\x1b[2J[bold red]x[/] \\x00 \\u202e :smile: \\x9b31m" in out
        for character in "\x1b\x00\u202e\x9b":
            assert character not in out


class Terminal:
    """A stream that says that a person sits at it."""

    encoding = "utf-8"
    closed = False

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


@pytest.mark.parametrize(
    ("plain", "no_color", "coloured"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_colours_on_a_terminal(monkeypatch: pytest.MonkeyPatch, plain: bool, no_color: bool, coloured: bool) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    Lines(plain).line(f"1.1 {HOSTILE}: failed", "bad")
    assert ("\x1b[1;31m" in terminal.text) is coloured
    left = terminal.text.replace("\x1b[1;31m", "").replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert left == "1.1 \\x1b[2J[bold red]x[/] \\x00 \\u202e :smile: \\x9b31m: failed\n"
    assert Output().terminal


def test_hints_come_one_after_the_other(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [invoke(capsys, "hint", "1.4").out for _ in range(4)]
    assert [text.split("\n")[0] for text in texts] == [f"1.4 The filters, hint {n} of 3" for n in (1, 2, 3, 3)]
    assert Folder(here / "my-course").load().of("1.4").hints == 3


def test_the_quiz_counts_for_nothing_but_is_remembered(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nanocourse.learner.quiz import questions

    asked = questions(CHAPTER)
    rights = ",".join(str(question.right) for question in asked)
    done = invoke(capsys, "quiz", "1", "--answers", rights)
    assert done.out.endswith(f"{len(asked)} of {len(asked)} right.\n")
    wrong = invoke(capsys, "quiz", "1", "--answers", ",".join("1" if q.right != 1 else "2" for q in asked))
    assert wrong.out.endswith(f"0 of {len(asked)} right.\n")
    assert Folder(here / "my-course").load().quiz == {"1": {"right": 0, "of": len(asked)}}


def test_answers_can_be_typed(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n"))
    assert invoke(capsys, "quiz", "1").out.endswith("of 1 right.\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("9\n"))
    refused = invoke(capsys, "quiz", "1")
    assert refused.code == 2
    assert "an answer must be a number from 1 to " in refused.err
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert invoke(capsys, "quiz", "1").out.endswith("No answer was given.\n")
    assert Folder(here / "my-course").load().quiz["1"]["of"] == 1


def test_predictions_stand_beside_bound_and_measurement(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def measure(device: torch.device) -> float:
        order.append("measured")
        return 6.0

    told = Prediction(
        "p", "How many?", "times", lambda device: 8.0, "by counting", measure, lambda b, m: f"{b - m:g} less"
    )
    monkeypatch.setattr(predict, "predictions", lambda chapter: (told, told))
    done = invoke(capsys, "predict", "1", "--guess", "12,3x")
    assert "guess 12, by arithmetic 8, measured 6 times" in done.out
    assert "The difference: 2 less" in done.out
    assert done.out.endswith("Your guesses so far: 2, median error: a factor of 2.00 (1 is exact).\n")
    assert [one["guess"] for one in Folder(here / "my-course").load().predictions] == [12, 3]
    assert "Guesses: 2, median error: a factor of 2.00" in "\n".join(
        text for text, _ in report.status_lines(Folder(here / "my-course"), CHAPTER)
    )


def test_calibration_is_symmetric() -> None:
    assert predict.factor(2, 8) == predict.factor(8, 2) == 4
    assert predict.calibration([]) is None
    kept = [{"guess": 1, "measured": 1}, {"guess": 1, "measured": 3}, {"guess": 9, "measured": 1}]
    assert predict.calibration(kept) == 3
    assert predict.parse_guess(" 1,000x ") == 1000
    for text in ("", "x", "-1", "0", "nan", "inf"):
        assert predict.parse_guess(text) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["start", "9"], "chapter must be one of 1"),
        (["check", "x"], "an exercise is a chapter and a number, as 1.4, not 'x'"),
        (["check", "1.99"], "chapter 1 has the exercises 1.1 to 1.8, and no '99'"),
        (["check", "1"], "nanoinfer course start 1"),
        (["check", "1", "--device", "tpu"], "device must be cpu or cuda, not 'tpu'"),
        (["hint", "1"], "an exercise is a chapter and a number"),
        (["predict", "1", "--guess", "1"], "there are 4 questions"),
        (["quiz", "1", "--answers", "1,x"], "there are"),
        (["strength", "9"], "chapter must be one of 1"),
    ],
)
def test_refused_in_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    result = invoke(capsys, *arguments)
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "x"}', '{"schema": "nanoinfer.course.progress"}'])
def test_a_broken_progress_file_is_named(here: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (here / "my-course").mkdir()
    (here / "my-course" / "progress.json").write_text(content)
    result = invoke(capsys, "hint", "1.1")
    assert result.code == 2
    assert "progress.json is not a readable progress file" in result.err
    assert (here / "my-course" / "progress.json").read_text() == content


def test_progress_is_kept_whole(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "x")
    progress = Progress(editions={"1.3": "time-first"})
    progress.of("1.1").tries = 3
    folder.save(progress)
    assert folder.load() == progress
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["progress.json"]


def test_an_edition_is_kept_from_start_to_check(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Folder(here / "my-course")
    folder.start(CHAPTER, editions={"1.3": "time-first"})
    stub = (here / "my-course" / "01-naive" / "ex3_last.py").read_text()
    assert "hidden (T, B, C)" in stub
    own(here, "1.3", answer("1.3", "row-by-row"))
    assert invoke(capsys, "check", "1.3").code == 1  # right in the plain form
    own(here, "1.3", stub.split("def ")[0] + (
        "def last_logits(hidden, lengths, wte, vocab_size):\n"
        "    return hidden[lengths - 1, torch.arange(hidden.shape[1])] @ wte[:vocab_size].T\n"
    ))  # fmt: skip
    done = invoke(capsys, "check", "1.3")
    assert done.code == 0
    assert "edition time-first" in " ".join(done.out.split())


def test_a_whole_chapter_costs_one_broken_exercise_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    invoke(capsys, "start", "1")
    own(here, "1.3", answer("1.3", "row-by-row"))
    own(here, "1.4", "")
    own(here, "1.7", "import os\ndef cost(*args):\n    os._exit(3)\n")
    result = invoke(capsys, "check", "1")
    assert result.code == 1
    lines = [line for line in result.out.splitlines() if line.startswith("1.")]
    assert [line.rsplit(": ", 1)[1] for line in lines] == [
        "not begun", "not begun", "passed", "not run", "not begun", "not begun", "crashed", "not begun",
    ]  # fmt: skip
    assert "ex4_filters.py has no function threshold" in result.out
    assert "the process ended with exit code 3" in result.out


def generate(*arguments: str) -> Result:
    """`nanoinfer generate` in a process of its own: the engine is changed in it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nanoinfer", "generate", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return Result(done.returncode, done.stdout, done.stderr)


def test_ones_own_functions_run_in_the_engine(here: Path) -> None:
    own(here, "1.1", answer("1.1", "query-by-query"))
    own(here, "1.3", answer("1.3", "last-column"))
    own(here, "1.7", answer("1.7", "layer-by-layer"))
    options = ["Once upon", "-n", "6", "--seed", "3", "--device", "cpu"]
    mine = generate(*options, "--mine", "my-course")
    assert mine.code == 0, mine.err
    assert mine.out == generate(*options, "--engine", "naive", "-q").out
    for part in (
        "1.1 Attention with given positions: yours",
        "1.3 The logits that count: the reference's (failed)",
        "1.7 What a pass costs: the reference's (it has no place in the engine)",
        "tokens/s",
        "the same tokens",
    ):
        assert part in mine.err
    memory = next(line for line in mine.err.splitlines() if line.startswith("memory")).split()
    assert float(memory[1]) > 0
    assert float(memory[3]) > 0


def test_ones_own_recorded_steps_run_without_a_gpu(here: Path) -> None:
    """By the stand-in, which is said, and the warning that a CPU records none is not; -v counts the learner's run."""
    own(here, "4.4", answer("4.4", "by-doublings"))
    options = ["Once upon", "-n", "6", "--greedy", "--device", "cpu", "--engine", "paged-graph", "-v"]
    mine = generate(*options, "--mine", "my-course")
    assert mine.code == 0, mine.err
    assert "steps were recorded by the stand-in: 6 of 6 decode steps were replayed" in mine.err
    assert "a CPU records no steps" not in mine.err
    assert re.search(r"^replayed_steps +6$", mine.err, re.M)
    assert "the same tokens" in mine.err
    assert "memory" not in mine.err


@pytest.mark.skipif(not has_triton(), reason="there are no wheels of Triton here")
@pytest.mark.long
def test_a_kernel_of_ones_own_runs_without_a_gpu(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command chooses Triton's interpreter, before later chapters import Triton; where it passed, 3.7 is idle."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    own(here, "3.6", answer("3.6", "keys-as-they-are"))
    own(here, "3.7", answer("3.7", chapters.exercise("3.7").right[0].name))
    options = ["Once upon", "-n", "2", "--greedy", "--device", "cpu", "--mine", "my-course"]
    mine = generate(*options)
    assert mine.code == 0, mine.err
    for part in (
        "3.6 The kernel over one row's pages: yours",
        "the same tokens",
        "never called: your 3.6 does not split",
    ):
        assert part in mine.err
    own(here, "3.6", answer("3.6", "no-tail-mask"))
    mine = generate(*options)
    assert "3.6 The kernel over one row's pages: the reference's (failed)" in mine.err
    assert "never called" not in mine.err  # 3.7 has its place again, and nothing is interpreted


def test_mine_without_anything_that_passes_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(here, "1.7", answer("1.7", "layer-by-layer"))
    code = cli.run(["generate", "x", "--mine", "my-course"])
    assert code == 2
    assert "no function that passes its checks and has a place in the engine" in capsys.readouterr().err
    assert cli.run(["generate", "x", "--mine", "nowhere"]) == 2
    assert "nowhere has no exercise's file" in capsys.readouterr().err
    assert cli.run(["generate", "x", "--mine", "my-course", "--json"]) == 2


def test_peak_memory_counts_what_lives_at_once() -> None:
    from nanocourse.learner.side_by_side import peak_bytes

    given = torch.zeros(1000)

    def run() -> None:
        for _ in range(3):
            (given + 1).sum()  # 4,000 bytes at a time, and a sum of 4
        given.mul_(2)

    assert 4000 <= peak_bytes(run) <= 4100
    assert peak_bytes(lambda: [given + 1, given + 2]) == 8000
