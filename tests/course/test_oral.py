"""Oral questions: they quote the learner's own lines, and what is true of them is computed by running them."""

from __future__ import annotations

import difflib
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from nanocourse.checks.worker import Worker
from nanocourse.exercises import chapters, sources
from nanocourse.exercises.exercise import Exercise
from nanocourse.grade.collect import Collected
from nanocourse.grade.isolation import bubblewrap
from nanocourse.release.oral import draw, truth
from nanocourse.release.oral.questions import Question
from nanocourse.release.submitted import Submitted, submitted
from tests.course.learner_files import EXERCISES, Course, Released

SECRET = "ab" * 32
LAST = """from torch import Tensor


def unreachable(lengths):
    return lengths[1] // 3


def last_logits(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> Tensor:
    found = []
    for row in range(len(lengths)):
        if vocab_size < 0:
            found.append(hidden[7])  # never
        found.append(hidden[row, int(lengths[row]) - 1] @ wte[:vocab_size].T)  # each row has its own last one: why
    import torch

    return torch.stack(found)
"""


@pytest.fixture(scope="module")
def of() -> Iterator[Submitted]:
    found = Collected({PurePosixPath("ex3_last.py"): LAST.encode()})
    with submitted(found, "anna", chapters.exercise("1.3")) as one:
        yield one


def asked(kind: str, line: str) -> Question:
    """The question of this kind about the line that has these words."""
    return next(one for one in draw.narrow_questions(LAST) if one.kind == kind and line in one.code)


@pytest.mark.parametrize("exercise", [one for one in EXERCISES if one.chapter <= 2], ids=lambda one: one.id)
def test_questions_quote_the_learners_own_lines(exercise: Exercise) -> None:
    answered = [sources.answer_source(exercise, one) for one in (*exercise.right, *exercise.real_wrong[:3])]
    for source in answered:
        lines = [line.strip() for line in source.splitlines()]
        found = draw.questions(exercise, source, SECRET)
        assert draw.questions(exercise, source, SECRET) == found
        assert len({(one.line, one.text) for one in found}) == len(found) == 4
        assert found[-1].kind == ("another form" if exercise.editions else "a mistake")
        for one in found:
            assert one.code == lines[one.line - 1]
            assert one.changed or one.seen or one.known or one.kind == "invariant", one
            compile(one.changed, "changed", "exec")
    many = [draw.questions(exercise, max(answered, key=len), f"{at:02d}" * 32) for at in range(8)]
    assert len({tuple(question.text for question in found) for found in many}) > 2


def test_a_text_where_a_number_could_stand_is_asked_about() -> None:
    source = 'def last(words):\n    return max(words, "b"), words[range(0, "c")]\n'
    assert [one.kind for one in draw.narrow_questions(source)] == ["bound", "picked", "bound"]


def test_lines_that_nothing_reaches_are_not_asked_about(of: Submitted) -> None:
    ran = truth.lines_that_ran(of)
    never = [number for number, line in enumerate(LAST.splitlines(), 1) if "// 3" in line or "hidden[7]" in line]
    assert ran.isdisjoint(never)
    without, with_ran = (
        {one.line for again in range(12) for one in draw.questions(of.exercise, LAST, SECRET, again, known)}
        for known in (frozenset[int](), ran)
    )
    assert not without.isdisjoint(never)
    assert with_ran.isdisjoint(never)
    assert {one.line for one in draw.changes(of.exercise, LAST, SECRET, ran)}.isdisjoint(never)


def test_values_are_those_of_the_example(of: Submitted) -> None:
    """The example of 1.3 has two rows, the shorter one of one token; a long line is shown whole."""
    _, lengths, wte, vocab = of.exercise.example().args
    (value,) = truth.values(of, asked("bound", "range").seen)
    assert value == f"On the example `range(len(lengths))` is range(0, {len(lengths)})"
    product = asked("product", "each row has its own last one")
    assert product.code.endswith("last one: why")
    texts = list(truth.values(of, product.seen))
    assert f"On the example `wte[:vocab_size].T` is of shape {tuple(wte[:vocab].T.shape)}, float32" in "\n".join(texts)
    assert sum("; then " in text for text in texts) == len(texts) == 3  # once a row
    branch = asked("branch", "vocab_size < 0")
    assert list(truth.values(of, branch.seen)) == ["On the example `vocab_size < 0` is False; then False"]


def test_a_change_is_run(of: Submitted) -> None:
    """The check that fails, its input, and what came; the file without the change passes."""
    whole = next(one for one in draw.narrow_questions(LAST) if one.kind == "slice" and "wte" in one.text)
    assert "wte[:vocab_size + 1]" in whole.text
    assert "all checks pass" in truth.verdict(truth.checked(of, LAST))
    found = list(truth.outcome(of, whole.changed, "With the change"))
    assert re.match(r"With the change, check [\w-]+ fails on hidden = .*expected .*got ", found[0])
    assert found[1].startswith("On the example it gives ")


def test_a_mistake_is_planted_in_the_learners_own_style(of: Submitted) -> None:
    ran = truth.lines_that_ran(of)
    changed, what = truth.planted(of, SECRET, ran)
    differ = [line for line in difflib.ndiff(LAST.splitlines(), changed.splitlines()) if line[0] in "+-"]
    assert [line[0] for line in differ] == ["-", "+"]  # one line, comments and all
    assert "check" in what[2]
    assert truth.checked(of, changed).status == "failed"


def test_the_worker_is_in_bubblewrap_where_it_can_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bubblewrap, "why_not", lambda: "")
    begun: list[list[str]] = []
    monkeypatch.setattr(Worker, "__init__", lambda self, prefix: begun.append(prefix))
    Submitted(chapters.exercise("1.3"), "x", b"", tmp_path / "x.py").start()
    assert {"--unshare-net", "--unshare-pid", "--unshare-user"} < set(begun[0])
    assert begun[0][begun[0].index(str(tmp_path)) - 1] == "--ro-bind"
    monkeypatch.setattr(bubblewrap, "why_not", lambda: "it is not installed")
    assert "without isolation, as `course check` does: it is not installed" in bubblewrap.told()


# The command


def test_the_command_asks(made: Released, tmp_path: Path, course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of a folder, a zip and a file. What is true is not computed here."""
    monkeypatch.setattr(truth, "lines_that_ran", lambda of: frozenset())
    monkeypatch.setattr(truth, "truths", lambda of, question: iter([f"it is {question.kind}"]))
    exercise = next(one for one in made.plan.exercises if one.id == "1.4")
    deep = tmp_path / "anna" / "my-course"
    deep.mkdir(parents=True)
    source = sources.answer_source(exercise, exercise.right[0])
    (deep / exercise.file).write_bytes(b"\xef\xbb\xbf" + source.replace("\n", "\r\n").encode())
    with zipfile.ZipFile(tmp_path / "anna.zip", "w") as archive:
        archive.write(deep / exercise.file, f"anna/{exercise.file}")
    given = set()
    for submission in (tmp_path / "anna", tmp_path / "anna.zip", deep / exercise.file):
        done = course("oral", submission, "1.4", "--assignment", made.autograder)
        assert done.code == 0, done.err
        assert done.out.count("Listen for:") == done.out.count("True: it is ") == 4
        given.add(done.out.partition("\n")[2])
    assert len(given) == 1
    assert "is the untouched stub" in course("oral", made.student, "1.4", "--assignment", made.autograder).err


def test_a_place_for_the_planted_file_must_be_free(tmp_path: Path, course: Course) -> None:
    (tmp_path / "there.py").write_text("mine")
    for place in (tmp_path / "there.py", tmp_path / "no" / "folder.py"):
        done = course("oral", tmp_path, "1.3", "--plant", place)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "--plant must be a file that is not there yet" in done.err
    assert (tmp_path / "there.py").read_text() == "mine"
