"""Checks as they are run: statuses, the receipt, the smallest input, the mistake by its name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nanocourse.checks.check import _check, known_mistake
from nanocourse.checks.known_mistakes import Tells
from nanocourse.checks.results import ExerciseResult
from nanocourse.checks.runner import Runner
from nanocourse.checks.shrink import smallest
from nanocourse.cli import console
from nanocourse.exercises import chapters, sources, stubs
from nanocourse.exercises.cases import Call, Case, call
from nanocourse.exercises.exercise import Check, Exercise, Spec, Wrong
from nanocourse.exercises.outcomes import Raised, Returned, deviation, difference, show
from nanocourse.learner.report import result_lines
from tests.course.learner_files import Keep, answer, checked


@pytest.fixture(scope="module")
def keep() -> Iterator[Keep]:
    kept = Keep()
    yield kept
    kept.end()


@pytest.fixture(scope="module")
def filters() -> Exercise:
    return chapters.exercise("1.4")


def right(exercise: Exercise) -> str:
    return sources.submission(exercise.function, sources.function_source(exercise.function), exercise.name)


def test_a_right_answer_passes_with_its_receipt(filters: Exercise, keep: Keep, tmp_path: Path) -> None:
    result = checked(filters, right(filters), tmp_path, keep)
    assert result.status == "passed"
    receipt = result.receipt
    assert receipt.registered == receipt.collected == receipt.run == len(filters.checks)
    digest = hashlib.sha256((tmp_path / filters.file).read_bytes()).hexdigest()
    assert receipt.files == ((filters.file, digest),)
    assert receipt.lines_run == receipt.lines == 10
    assert json.loads(json.dumps(result.to_json()))["status"] == "passed"


def test_the_stub_is_not_begun(filters: Exercise, keep: Keep, tmp_path: Path) -> None:
    result = checked(filters, stubs.stub(filters, chapters.chapter(1)), tmp_path, keep)
    assert result.status == "not begun"
    assert {check.status for check in result.checks} == {"not begun"}


@pytest.mark.parametrize(
    ("source", "problem"),
    [("", "has no function threshold"), ("def threshold(:", "cannot be run: SyntaxError"), (b"\xff", "cannot be run")],
)
def test_what_cannot_be_run_is_not_run(
    filters: Exercise, keep: Keep, tmp_path: Path, source: str | bytes, problem: str
) -> None:
    result = checked(filters, source, tmp_path, keep)
    assert result.status == "not run"
    assert problem in result.problem
    assert (result.receipt.collected, result.receipt.run) == (0, 0)


def test_a_missing_file_is_not_run(filters: Exercise, keep: Keep, tmp_path: Path) -> None:
    from nanocourse.checks.check import check_exercise

    result = check_exercise(filters, tmp_path / filters.file, keep.take)
    assert (result.status, result.problem) == ("not run", "there is no file ex4_filters.py")


def test_right_results_without_a_line_of_ones_own_are_not_passed(keep: Keep, tmp_path: Path) -> None:
    """A function that is none of the learner's file: the results are right, and nothing of theirs was run."""
    exercise = _toy_exercise(tmp_path)
    result = checked(exercise, "import torch\ndouble = torch.neg\n", tmp_path, keep)
    assert all(check.status == "passed" for check in result.checks)
    assert result.status == "not run"
    assert checked(exercise, "def double(x):\n    return -x\n", tmp_path, keep).status == "passed"


def _toy_exercise(folder: Path) -> Exercise:
    def double(x: torch.Tensor) -> torch.Tensor:
        """Minus x."""
        return -x

    def any_number(case: Case) -> Call:
        """It is minus x."""
        return call(case.floats("x", case.size("n", 1, 3)))

    spec = Spec("Toy", double, "", (), 1, lambda: call(torch.ones(1)), "", ("", "", ""), tolerance=1e-6)
    return Exercise("1.9", "toy", folder / "answers" / "ex9_toy.py", spec, double, (Check(any_number),))


def test_half_finished_work_fails_and_says_what_is_left(filters: Exercise, keep: Keep, tmp_path: Path) -> None:
    source = """
import torch
def threshold(scores, top_k, top_p):
    if bool((top_p < 1).any()):
        raise NotImplementedError("ch01.ex4 threshold: top_p is to come")
    V = scores.shape[-1]
    k = torch.where(top_k > 0, top_k, V).clamp(max=V)[:, None].long()
    return scores.sort(-1, descending=True).values.gather(-1, k - 1)
"""
    result = checked(filters, source, tmp_path, keep)
    assert result.status == "failed"
    states = {check.name: check.status for check in result.checks}
    assert states["top-k"] == "passed"
    assert states["top-p"] == "failed"
    (failure,) = [check.failure for check in result.checks if check.name == "top-p"]
    assert failure is not None
    assert "NotImplementedError: ch01.ex4 threshold: top_p is to come" in failure.got


@pytest.mark.parametrize("ending", ["while True: pass", "__import__('os').abort()"], ids=["hang", "crash"])
def test_a_hang_or_a_crash_costs_its_check_alone(keep: Keep, tmp_path: Path, ending: str) -> None:
    exercise = _toy_exercise(tmp_path)

    def longest(case: Case) -> Call:
        """It is minus x, of four numbers."""
        return call(case.floats("x", 4))

    several = (exercise.checks[0], Check(longest), Check(exercise.checks[0].make))
    from dataclasses import replace

    exercise = replace(exercise, checks=several, spec=replace(exercise.spec, limit_s=1.0))
    source = f"def double(x):\n    if len(x) == 4:\n        {ending}\n    return -x\n"
    result = checked(exercise, source, tmp_path, keep)
    states = [check.status for check in result.checks]
    assert states[0] == states[2] == "passed"
    assert states[1] == result.status == ("hung" if "while" in ending else "crashed")


def test_the_reference_is_refused_by_name(filters: Exercise, keep: Keep, tmp_path: Path) -> None:
    result = checked(filters, "from nanoinfer.engine.sampling import threshold\n", tmp_path, keep)
    assert result.status == "refused"
    assert "nanoinfer.engine.sampling.threshold" in result.checks[0].note


def test_a_failure_is_shown_on_the_smallest_input(filters: Exercise, keep: Keep, tmp_path: Path) -> None:
    result = checked(filters, answer("1.4", "crossing-dropped"), tmp_path, keep)
    (failure,) = [check.failure for check in result.checks if check.name == "top-p"]
    assert failure is not None
    assert failure.shrunk
    inputs = dict(failure.inputs)
    assert inputs["scores"].count(",") == 2  # one row of three ids, the fewest that this check makes
    assert failure.where == "row 0, column 0"
    assert failure.expected != failure.got


def test_the_mistake_is_named_only_where_it_was_looked_for(filters: Exercise, keep: Keep, tmp_path: Path) -> None:
    source = answer("1.4", "unsorted")
    first = checked(filters, source, tmp_path, keep)
    assert (first.mistake, first.mistake_sought) == (None, False)
    second = checked(filters, source, tmp_path, keep, name_mistakes=True)
    assert second.mistake is not None
    assert second.mistake[0] == "unsorted"


def test_what_is_going_on_is_said_to_whoever_waits(
    keep: Keep, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check and each known mistake, on standard error, a line every few seconds at most."""
    said: list[str] = []
    exercise = chapters.exercise("3.5")
    checked(exercise, answer("3.5", "begins-at-0"), tmp_path, keep, name_mistakes=True, say=said.append)
    assert said[0] == f"3.5: check 1 of {len(exercise.checks)}, {exercise.checks[0].name}"
    assert sum("known mistake" in text for text in said) == len(Tells(exercise, "course").wrong)
    now = iter((0.0, 1.0, 5.0, 5.0, 6.0))
    monkeypatch.setattr(console.time, "monotonic", lambda: next(now))
    going_on = console.patience()
    for text in ("soon", "late\x1b", "soon again"):
        going_on(text)
    assert capsys.readouterr().err == "... late\\x1b\n"


def test_an_unknown_mistake_is_not_taken_for_a_known_one(filters: Exercise, keep: Keep, tmp_path: Path) -> None:
    source = right(filters).replace("return torch.maximum(kth, by_p)", "return torch.maximum(kth, by_p) + 0.01")
    result = checked(filters, source, tmp_path, keep, name_mistakes=True)
    assert result.status == "failed"
    assert (result.mistake, result.mistake_sought) == (None, True)


def test_a_right_answer_is_never_named(filters: Exercise) -> None:
    tells = Tells(filters, "course")
    assert tells.name(lambda asked: Returned(filters.function(*asked.args))) is None


def test_a_tell_differs_from_what_is_right(tmp_path: Path) -> None:
    """Where the one mistake cannot be seen it still differs from the other: that tells nothing of it."""

    def first_alone(x: torch.Tensor) -> torch.Tensor:
        """Only the first number is negated."""
        return torch.cat([-x[:1], x[1:]])

    def doubled(x: torch.Tensor) -> torch.Tensor:
        """It is minus two x."""
        return -2 * x

    toy = _toy_exercise(tmp_path)
    toy = replace(toy, wrong=(Wrong(first_alone, "this test"), Wrong(doubled, "this test")))
    found = Tells(toy, "course").found
    assert [len(tells) for tells in found.values()] == [3, 3]
    for tells in found.values():
        for ((check, case),), (outcome,) in tells:
            assert toy.compare(check, toy.expected(toy.call(check, case)), outcome)


def test_mistakes_that_cannot_be_told_apart_are_not_named(filters: Exercise) -> None:
    (sorts,) = (wrong for wrong in filters.wrong if wrong.name == "unsorted")
    assert isinstance(sorts.answer, tuple)
    same = Wrong.patch("same", "The same, given twice.", *sorts.answer, "this test")
    tells = Tells(replace(filters, wrong=(sorts, same)), "course")
    assert tells.found == {"unsorted": [], "same": []}
    assert tells.name(lambda asked: Returned(torch.zeros(1))) is None


def test_a_coincidence_is_not_named(filters: Exercise) -> None:
    """A row's minimum is what `scores-summed` gives wherever it keeps all ids: it takes other checks to tell them."""
    tells = Tells(filters, "course")

    def minimum(asked: Call) -> Returned:
        return Returned(asked.args[0].amin(-1, keepdim=True))

    assert tells.name(minimum) is None
    checks = {check.name for ((check, _),), _ in tells.found["scores-summed"]}
    assert checks == {"top-p", "top-k-then-top-p", "any-batch"}
    same = [toy for toy, (outcome,) in tells.found["scores-summed"] if not _differs(tells, toy, outcome, minimum)]
    assert same  # on some of its inputs it is one


def _differs(tells: Tells, one: Any, outcome: Any, solve: Any) -> bool:
    ((check, case),) = one
    return tells.exercise.compare(check, outcome, solve(tells.exercise.call(check, case))) is not None


def test_a_result_that_changes_from_call_to_call_fails(keep: Keep, tmp_path: Path) -> None:
    exercise = _toy_exercise(tmp_path)
    source = "calls = []\ndef double(x):\n    calls.append(1)\n    return -x + (len(calls) == 2)\n"
    assert checked(exercise, source, tmp_path, keep).status == "failed"


def test_passed_needs_every_registered_check() -> None:
    """The one place where `passed` is said looks at the receipt, and not at the checks alone."""
    from nanocourse.checks.results import CheckResult, Receipt

    passed = CheckResult("a", "", "passed", 1)

    def status(registered: int, collected: int, run: int, lines: int, *checks: CheckResult) -> str:
        receipt = Receipt((), registered, collected, run, lines, 5, (), "cpu", "")
        return ExerciseResult("1.1", "", "f.py", checks, receipt).status

    assert status(1, 1, 1, 3, passed) == "passed"
    assert status(2, 1, 1, 3, passed) == "not run"
    assert status(2, 2, 1, 3, passed, CheckResult("b", "", "not run", 0)) == "not run"
    assert status(1, 1, 1, 0, passed) == "not run"
    assert status(0, 0, 0, 0) == "not run"


def test_differences_name_the_place() -> None:
    one = Returned(torch.zeros(2, 3))
    other = torch.zeros(2, 3)
    other[1, 2] = 0.5
    found = difference(one, Returned(other), 1e-3, ("row", "head"))
    assert found is not None
    assert (found.where, found.expected, found.got, found.size) == ("row 1, head 2", "0", "0.5", 0.5)
    assert difference(one, Returned(other), 0.6) is None
    assert difference(Returned([1, 2]), Returned([1, 3]), 0.0, ("token",)).where == "token 1"  # type: ignore[union-attr]


def test_items_of_a_tuple_have_names_of_their_own() -> None:
    axes = (("owned", "row", "block"), ("free", "place"))

    def where(one: object, other: object) -> str:
        found = difference(Returned(one), Returned(other), 0.0, axes)
        assert found is not None
        return found.where

    assert where(([[1], [2]], [3]), ([[1], [4]], [3])) == "owned, row 1, block 0"
    assert where(([[1], [2]], [3]), ([[1], [2, 4]], [3])) == "owned, row 1"
    assert where(([[1]], [3, 5]), ([[1]], [3, 4])) == "free, place 1"


def test_a_type_counts_where_an_exercise_says_so() -> None:
    one, other = Returned(torch.arange(2)), Returned(torch.arange(2).int())
    found = difference(one, other, 0.0, typed=True)
    assert found is not None
    assert (found.where, found.expected, found.got) == ("", "the type int64", "int32")
    assert deviation(one, other, typed=True) > 1
    assert difference(one, one, 0.0, typed=True) is None


def test_whole_numbers_are_shown_in_full() -> None:
    found = difference(Returned(torch.tensor([10737500160])), Returned(torch.tensor([-2147450880])), 0.0)
    assert found is not None
    assert (found.expected, found.got) == ("10737500160", "-2147450880")
    assert [show(value) for value in (1234567.0, 0.12345678, 3e38, float("inf"))] == [
        "1234567", "0.123457", "3e+38", "inf",
    ]  # fmt: skip


def test_a_lent_function_is_shown_by_what_it_gives(keep: Keep, tmp_path: Path) -> None:
    """What the solution was given can be worked through by hand."""
    result = checked(chapters.exercise("3.5"), answer("3.5", "begins-at-0"), tmp_path, keep)
    (failure,) = [check.failure for check in result.checks if check.name == "falling"]
    assert failure is not None
    names = [name for name, _ in failure.inputs]
    assert names == ["read(0)", "read(1)", "tiles"]
    assert re.fullmatch(r"\(\[[-.\d]+\], \[[-.\d]+\]\)", dict(failure.inputs)["read(0)"])
    assert failure.where in ("the maximum", "the sum", "the weighted sum")


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2).long(), torch.zeros(2)),
        (torch.zeros(2).bool(), torch.zeros(2).long()),
        (torch.zeros(1), torch.full((1,), torch.nan)),
        (torch.zeros(1), torch.full((1,), torch.inf)),
        (torch.zeros(1), None),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        (2**60, 2**60 + 2**10),
        (None, 0),
        ("a", "b"),
    ],
)
def test_different_values_differ(expected: object, got: object) -> None:
    assert difference(Returned(expected), Returned(got), 1e-30) is not None
    assert deviation(Returned(expected), Returned(got)) > 0


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (torch.zeros(2), torch.zeros(2).double()),
        (torch.zeros(2).long(), torch.zeros(2).int()),
        (torch.tensor([torch.nan, torch.inf, -torch.inf]), torch.tensor([torch.nan, torch.inf, -torch.inf])),
        ((1, 2), [1, 2]),
        (3, torch.tensor(3)),
        (3, 3.0),
    ],
)
def test_values_that_are_the_same_in_another_form(expected: object, got: object) -> None:
    assert difference(Returned(expected), Returned(got), 0.0) is None
    assert deviation(Returned(expected), Returned(got)) == 0


def test_exceptions_are_equal_by_their_kind() -> None:
    assert difference(Raised("ValueError", "a"), Raised("ValueError", "b"), 0.0) is None
    assert difference(Raised("ValueError", "a"), Raised("KeyError", "a"), 0.0) is not None
    assert difference(Returned(None), Raised("ValueError", ""), 0.0) is not None


def test_large_values_are_told_by_their_shape() -> None:
    assert show(torch.ones(100, 7)) == "float32 of shape (100, 7)"
    assert len(show(list(range(10_000)))) < 200


def test_draws_depend_on_seed_and_name_alone() -> None:
    one, other = Case("s"), Case("s")
    other.size("b", 1, 100)
    assert one.size("a", 1, 10**6) == other.size("a", 1, 10**6)
    assert torch.equal(one.floats("x", 3), Case("s", {"a": 1}).floats("x", 3))
    assert not torch.equal(Case("s").floats("x", 3), Case("t").floats("x", 3))
    assert not torch.equal(Case("s").floats("x", 3), Case("s").floats("y", 3))


def test_a_permutation_is_never_the_order_itself() -> None:
    for seed in range(50):
        order = Case(str(seed)).permutation("p", 2)
        assert order.tolist() == [1, 0]


def test_shrinking_finds_the_smallest_sizes() -> None:
    def fails(case: Case) -> bool:
        return case.size("a", 1, 9) >= 3 and case.size("b", 1, 9) >= 2

    case = next(c for c in (Case(str(seed)) for seed in range(100)) if fails(c) and c.drawn["b"][1] > 3)
    found = smallest(case, fails)
    assert (found.size("a", 1, 9), found.size("b", 1, 9)) == (3, 2)


def test_what_does_not_matter_becomes_zeros() -> None:
    def fails(case: Case) -> bool:
        x, y = case.floats("x", 2), case.floats("y", 2)
        return bool(x.any()) and y.shape == (2,)

    found = smallest(Case("s"), fails)
    assert found.zeros == {"y"}
    assert show(found.floats("y", 2)) == "zeros of shape (2,)"


def test_shrinking_gives_the_case_back_where_nothing_smaller_fails() -> None:
    case = Case("s")
    case.size("a", 1, 9)
    assert smallest(case, lambda candidate: candidate is case) is case


def test_a_patch_that_does_not_fit_is_refused(filters: Exercise) -> None:
    with pytest.raises(ValueError, match="stands 0 times"):
        sources.answer_source(filters, Wrong.patch("a", "b", "no such text", "", "c"))


def test_what_was_lent_is_told(keep: Keep, tmp_path: Path) -> None:
    exercise = chapters.exercise("1.6")
    result = checked(exercise, right(exercise), tmp_path, keep)
    assert result.receipt.reference_parts == ("choose (lent)", "logits_of (lent)")


def test_long_lists_are_shown_where_they_part() -> None:
    found = difference(Returned([0] * 31 + [1] * 18), Returned([0] * 31 + [2] * 19), 1e-9)
    assert found is not None
    assert found.expected.startswith("49 items, from item 28 on: [0, 0, 0, 1, ")
    assert found.got.startswith("50, from item 28 on: [0, 0, 0, 2, ")
    longer = difference(Returned([0] * 49), Returned([0] * 50), 1e-9)
    assert longer is not None
    assert longer.expected == "49 items, from item 46 on: [0, 0, 0]"
    assert longer.got == "50, from item 46 on: [0, 0, 0, 0]"
    short = difference(Returned([1, 2]), Returned([1]), 1e-9)
    assert short is not None
    assert (short.expected, short.got) == ("2 items: [1, 2]", "1: [1]")


def test_items_of_what_stands_in_a_tuple_have_names() -> None:
    axes = (("blocks", "row"), ("sent", "place", ("row",), ("token",)))
    found = difference(Returned(([2, 2], [(0, 453)])), Returned(([2, 2], [(0, 579)])), 1e-9, axes)
    assert found is not None
    assert found.where == "sent, place 0, token"
    block = difference(Returned(([2, 2], [])), Returned(([2, 3], [])), 1e-9, axes)
    assert block is not None
    assert block.where == "blocks, row 1"


def test_a_size_that_is_large_is_shrunk_as_others_are() -> None:
    def fails(case: Case) -> bool:
        return case.most("items", 1, 60) >= 7

    first = Case("course/x/0")
    assert fails(first)
    assert first.most("items", 1, 60) == 60
    assert smallest(first, fails).most("items", 1, 60) == 7


VERDICTS = [one for number in (1, 4, 5) for one in chapters.exercises(chapters.chapter(number)) if one.spec.verdicts]


@pytest.mark.parametrize("exercise", VERDICTS, ids=lambda one: one.id)
@pytest.mark.parametrize("body", ["assert False", "return None"])
def test_a_test_that_does_no_work_is_given_no_diagnosis(
    exercise: Exercise, body: str, keep: Keep, tmp_path: Path
) -> None:
    head = sources.function_source(exercise.function).splitlines()[0]
    names = exercise.function.__code__.co_varnames[: exercise.function.__code__.co_argcount]
    assert head.startswith("def ")
    source = f"def {exercise.name}({', '.join(names)}):\n    {body}\n"
    result = checked(exercise, source, tmp_path, keep, name_mistakes=True)
    assert result.status == "failed"
    assert result.mistake_sought
    assert result.mistake is None


def test_fixed_inputs_are_asked_once(keep: Keep, tmp_path: Path) -> None:
    """5.7: each queue once, whatever the seed, and the names of mistakes come from the same calls."""
    exercise = chapters.exercise("5.7")
    path = tmp_path / exercise.file
    path.write_text("def check_queue(play):\n    print('asked')\n    assert False\n", encoding="utf-8")
    runner = Runner(exercise, path, keep.take, exercise.spec.limit_s)
    calls: list[Call] = []
    call_once = runner.call
    seen: dict[str, Any] = {}
    runner.call = lambda asked: (calls.append(asked), call_once(asked))[1]  # type: ignore[method-assign, func-returns-value]
    for check in exercise.checks:
        _check(runner, check, "course/12345678", seen)
    known_mistake(runner, keep.take, "course", seen)
    assert set(seen) < {f"course/{check.name}/{at}" for check in exercise.checks for at in range(check.cases)}
    assert len(calls) <= sum(check.cases for check in exercise.checks)


def test_a_queue_that_a_check_knows_is_told(keep: Keep, tmp_path: Path) -> None:
    exercise = chapters.exercise("5.7")
    result = checked(exercise, "def check_queue(play):\n    return None\n", tmp_path, keep)
    lines = "\n".join(line for line, _ in result_lines(result, exercise, chapters.chapter(5)))
    assert "The queue that is wrong: Whoever writes waits until no prompt is left to be read." in lines
    assert "With this input:\n      The queue" in lines
    assert "Failed as well: too-large (A queue fails that takes a request" in lines


def test_places_that_count_from_0_say_so(keep: Keep, tmp_path: Path) -> None:
    exercise = chapters.exercise("5.5")
    result = checked(exercise, answer("5.5", "steps-of-the-text"), tmp_path, keep, name_mistakes=True)
    lines = "\n".join(line for line, _ in result_lines(result, exercise, chapters.chapter(5)))
    assert re.search(r"At sent, place \d, token \(places count from 0\): expected \d+, got \d+", lines)
    assert "next_token([" in lines
    assert result.mistake is not None
    assert result.mistake[0] == "steps-of-the-text"
