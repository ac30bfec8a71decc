"""What is true beside an oral question: values, changes, what nothing reaches, a planted mistake, another form."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from nanocourse.exercises import chapters
from nanocourse.grade.collect import Collected
from nanocourse.grade.isolation import bubblewrap
from nanocourse.release.oral import draw, truth
from nanocourse.release.oral.questions import Question
from nanocourse.release.submitted import Submitted, submitted
from nanoinfer import cli
from tests.course.learner_files import answer

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


def test_lines_that_nothing_reaches_are_not_asked_about(of: Submitted) -> None:
    ran, lines = truth.lines_that_ran(of), LAST.splitlines()
    assert {lines[number - 1].strip() for number in ran} >= {"found = []", "for row in range(len(lengths)):"}
    never = [number for number, line in enumerate(lines, 1) if "// 3" in line or "hidden[7]" in line]
    assert ran.isdisjoint(never)
    without, with_ran = (
        {one.line for again in range(12) for one in draw.questions(of.exercise, LAST, SECRET, again, known)}
        for known in (frozenset[int](), ran)
    )
    assert not without.isdisjoint(never)
    assert with_ran.isdisjoint(never)
    assert {one.line for one in draw.changes(of.exercise, LAST, SECRET, ran)}.isdisjoint(never)


def test_no_question_is_about_a_deleted_line() -> None:
    every = [one for again in range(12) for one in draw.questions(chapters.exercise("1.3"), LAST, SECRET, again)]
    assert not [one for one in every if "deleted" in one.text or one.kind == "left out"]


def test_a_long_line_is_shown_whole() -> None:
    one = asked("product", "each row has its own last one")
    assert len(one.code) > 100
    assert one.code.endswith("last one: why")


def test_values_are_those_of_the_example(of: Submitted) -> None:
    """The example of 1.3 has two rows, the shorter one of one token."""
    _, lengths, wte, vocab = of.exercise.example().args
    (value,) = truth.values(of, asked("bound", "range").seen)
    assert value == f"On the example `range(len(lengths))` is range(0, {len(lengths)})"
    texts = list(truth.values(of, asked("product", "@").seen))
    assert f"On the example `wte[:vocab_size].T` is of shape {tuple(wte[:vocab].T.shape)}, float32" in "\n".join(texts)
    assert sum("; then " in text for text in texts) == len(texts) == 3  # once a row
    (loop,) = (one for one in draw.narrow_questions(LAST) if one.kind == "loop")
    assert f"On the example the body runs {len(lengths)} times" in list(truth.values(of, loop.seen))
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
    changed, what = truth.planted(of, SECRET, truth.lines_that_ran(of))
    ast.parse(changed)
    differ = [line for line in difflib.ndiff(LAST.splitlines(), changed.splitlines()) if line[0] in "+-"]
    assert [line[0] for line in differ] == ["-", "+"]  # one line, comments and all
    assert "check" in what[2]
    assert truth.checked(of, changed).status == "failed"
    assert truth.planted(of, SECRET, truth.lines_that_ran(of)) == (changed, what)


def test_a_question_is_about_another_form() -> None:
    for id, given, says in (("1.3", "", "the columns stand before the rows"), ("1.3", "time-first", "as the chapter")):
        exercise = chapters.exercise(id).as_edition(given) if given else chapters.exercise(id)
        last = draw.questions(exercise, LAST, SECRET)[-1]
        assert last.kind == "another form"
        assert says in last.text
        assert last.known[1].startswith("def last_logits(")
    source = answer("1.7", chapters.exercise("1.7").right[0].name)
    last = draw.questions(chapters.exercise("1.7"), source, SECRET)[-1]  # which has no edition
    assert last.kind == "a mistake"
    assert last.changed in [answer("1.7", wrong.name) for wrong in chapters.exercise("1.7").real_wrong]


def test_the_worker_is_in_bubblewrap_where_it_can_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bubblewrap, "why_not", lambda: "")
    monkeypatch.setattr(bubblewrap.Wrapped, "own", tmp_path, raising=False)
    command = bubblewrap.Wrapped._wrapped(object.__new__(bubblewrap.Wrapped), ["python", "x"], [str(tmp_path)])
    assert command[:2] == ["bwrap", "--unshare-all"]
    assert command[-2:] == ["python", "x"]
    assert str(tmp_path) in command
    assert "in bubblewrap" in bubblewrap.told()
    monkeypatch.setattr(bubblewrap, "why_not", lambda: "bubblewrap (bwrap) is not installed")
    assert bubblewrap.Wrapped._wrapped(object.__new__(bubblewrap.Wrapped), ["python"], []) == ["python"]
    assert "without isolation, as `course check` does: bubblewrap (bwrap) is not installed" in bubblewrap.told()


def test_a_place_for_the_planted_file_must_be_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there.py").write_text("mine")
    for place in (tmp_path / "there.py", tmp_path / "no" / "folder.py"):
        assert cli.run(["course", "oral", str(tmp_path), "1.3", "--plant", str(place)]) == 2
        said = capsys.readouterr().err
        assert "--plant must be a file that is not there yet" in said
        assert said.count("\n") == 1
    assert (tmp_path / "there.py").read_text() == "mine"
