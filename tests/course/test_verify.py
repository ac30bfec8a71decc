"""Names of inputs, inputs of each learner's own, `course verify`, and `course similar`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanocourse.checks.check import check_exercise
from nanocourse.checks.replay import NAME, input_of, name_of, seed_of
from nanocourse.exercises import chapters, stubs
from nanocourse.exercises.cases import Case
from nanocourse.grade.assignment import Assignment, Part
from nanocourse.grade.collect import collect
from nanocourse.learner.folder import Folder, Progress
from nanocourse.learner.report import receipt_text, result_lines
from nanocourse.release.similar import alike, copied_folders
from tests.course.learner_files import EXERCISES, Course, Keep, answer

ONE, OTHER = "0a1b2c3d", "ffffffff"
LAST = chapters.exercise("1.3")
CHAPTER = chapters.chapter(1)
WRONG, RIGHT = answer("1.3", LAST.wrong[0].name), answer("1.3", LAST.right[0].name)


def assigned(folder: Path, *ids: str) -> str:
    folder.mkdir()
    Assignment(1, "A set", tuple(Part(id) for id in ids)).save(folder)
    (folder / "secret.txt").write_text("ab" * 32)
    return str(folder)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.id)
def test_a_name_gives_the_same_input(exercise: chapters.Exercise) -> None:
    for check in exercise.checks:
        for seed in (seed_of(ONE), seed_of("")):
            drawn = Case(f"{seed}/{check.name}/0/small 2")
            exercise.call(check, drawn)
            case = Case(
                drawn.seed, {name: low for name, (low, _) in drawn.drawn.items()}, True, frozenset(drawn.floats_drawn)
            )
            name = name_of(exercise, case)
            assert NAME.fullmatch(name), name
            assert input_of(exercise, name) == (check, case)
    assert name_of(exercise, Case("a secret/x/0")) == ""


@pytest.mark.parametrize(
    "name", ["1.3/nothing/0", "1.4/ragged/0", "", "1.3/ragged/0:rows=x", "1.3/ragged/0:rows=99999"]
)
def test_a_name_of_no_input_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"names no input of exercise 1\.3"):
        input_of(LAST, name)


def test_equal_mistakes_do_not_print_equal_messages(keep: Keep, tmp_path: Path) -> None:
    (tmp_path / LAST.file).write_text(WRONG)
    told = {}
    for own in (ONE, OTHER, ONE):
        result = check_exercise(LAST, tmp_path / LAST.file, keep.take, seed=seed_of(own))
        text = "\n".join(line for line, _ in result_lines(result, LAST, CHAPTER, True))
        assert told.setdefault(own, text) == text  # one's own message comes again
        assert f"This input is 1.3/{own}/" in text
        assert f"inputs {own}" in text
    shown = [text.partition("found:")[2].partition("This input")[0] for text in told.values()]
    assert shown[0] != shown[1]


def test_a_learner_has_a_number_of_their_own(tmp_path: Path, course: Course) -> None:
    numbers = []
    for name in ("anna", "anna", "ben"):
        folder = Folder(tmp_path / name)
        folder.start(CHAPTER)
        course("check", "1.3", "--mine", tmp_path / name)
        numbers.append(folder.load().own)
    assert numbers[0] == numbers[1] != numbers[2]
    path = tmp_path / "anna" / "progress.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"own": "../x"}))
    with pytest.raises(ValueError, match="is not a readable progress file"):
        Folder(tmp_path / "anna").load()


@pytest.fixture
def handed_in(keep: Keep, tmp_path: Path) -> SimpleNamespace:
    """A submission whose questions.md has a receipt of its file, and a failing input of an earlier version."""
    home = tmp_path / "anna" / "my-course" / "01-naive"
    home.mkdir(parents=True)
    path = home / LAST.file
    results = []
    for source in (WRONG, RIGHT):
        path.write_text(source)
        results.append(check_exercise(LAST, path, keep.take, seed=seed_of(ONE)))
    lines = [f"> {line}" for result in results for line, _ in result_lines(result, LAST, CHAPTER, True)]
    (tmp_path / "anna" / "questions.md").write_text("# 1\n" + "\n".join(lines) + "\n")
    Folder(tmp_path / "anna" / "my-course").save(Progress(own=ONE))
    failed = next(check for check in results[0].checks if check.failure)
    assert failed.failure
    return SimpleNamespace(
        path=str(tmp_path / "anna"), assignment=assigned(tmp_path / "autograder", "1.3", "1.4"), right=results[1],
        input=failed.failure.again, page=tmp_path / "anna" / "questions.md",
    )  # fmt: skip


def test_claims_are_run_again(handed_in: SimpleNamespace, course: Course) -> None:
    done = course("verify", handed_in.path, "--assignment", handed_in.assignment)
    assert done.code == 0, done.out + done.err
    assert f"The receipt is as it comes out again: {receipt_text(handed_in.right)}" in done.out
    assert "The receipt is of another version of ex3_last.py" in done.out  # of the one that failed
    assert f"Input {handed_in.input}, check ragged" in done.out
    assert "The file that was handed in: passed" in done.out
    assert "Right is " in done.out
    assert "1.4" not in done.out


def test_a_receipt_that_was_changed_is_noticed(handed_in: SimpleNamespace, course: Course) -> None:
    page, others = handed_in.page.read_text(), f"The receipt is of inputs {OTHER}, and the progress file is of {ONE}"
    changes = [("lines: ", "lines: 1", "is another one: claimed: "), (f"inputs {ONE}", f"inputs {OTHER}", others)]
    for old, new, said in changes:
        handed_in.page.write_text(page.replace(old, new))
        done = course("verify", handed_in.path, "--assignment", handed_in.assignment)
        assert done.code == 1
        assert said in done.out


# Similarity

FILTERS = chapters.exercise("1.4")


def renamed(source: str) -> str:
    """A copy with other names, comments and breaks."""
    for old, new in (("scores", "ranked"), ("top_k", "few"), ("found", "result"), ("ordered", "downwards")):
        source = source.replace(old, new)
    return source.replace("\n    ", "\n    # mine\n    ", 1)


def test_a_class_is_listed(tmp_path: Path, course: Course) -> None:
    own = "def threshold(scores, top_k, top_p):\n    import math\n    while True:\n        print(math.pi)\n"
    files = {
        "anna": own, "ben": renamed(own), "carl": renamed(answer("1.4", FILTERS.right[0].name)),
        "dora": stubs.stub(FILTERS, CHAPTER), "eve": stubs.stub(FILTERS, CHAPTER), "fred": "def x(:",
    }  # fmt: skip
    for name, source in files.items():
        (tmp_path / "class" / name).mkdir(parents=True)
        (tmp_path / "class" / name / FILTERS.file).write_text(source)
        Folder(tmp_path / "class" / name).save(Progress(own=ONE if name in ("anna", "carl") else ""))
    found = {name: collect(tmp_path / "class" / name) for name in files}
    pairs = {(one.one, one.other): one.share for one in alike(FILTERS, found, stubs.stub(FILTERS, CHAPTER))}
    assert pairs == {("anna", "ben"): 1.0, ("carl", f"the right answer {FILTERS.right[0].name}"): 1.0}
    assert list(copied_folders(found)) == [("anna", "carl")]
    done = course("similar", str(tmp_path / "class"), "--assignment", assigned(tmp_path / "as", "1.4"))
    assert done.code == 0, done.err
    assert "100%  anna and ben" in done.out
    assert "To be looked at by a person" in done.out
    assert "anna, carl: progress.json has the same number" in done.out
