"""Checks as they are run: statuses, the receipt, the smallest input, the mistake by its name."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nanocourse.checks.known_mistakes import Tells
from nanocourse.checks.results import CheckResult, ExerciseResult, Receipt
from nanocourse.exercises import chapters, sources, stubs
from nanocourse.exercises.cases import Call, Case, call
from nanocourse.exercises.exercise import Check, Exercise, Spec, Wrong
from nanocourse.exercises.outcomes import Returned
from nanocourse.learner.report import result_lines
from tests.course.learner_files import EXERCISES, Keep, answer, checked, right_file

FILTERS = chapters.exercise("1.4")
RIGHT, CHAPTER = right_file(FILTERS), chapters.chapter(1)


def toy(folder: Path) -> Exercise:
    def double(x: torch.Tensor) -> torch.Tensor:
        """Minus x."""
        return -x

    def any_number(case: Case) -> Call:
        """It is minus x."""
        return call(case.floats("x", case.size("n", 1, 3)))

    spec = Spec(
        double, 1, lambda: call(torch.ones(1)), "Sixty lines that write text", title="Toy", tolerance=1e-6, limit_s=1.0
    )
    return Exercise("1.9", "toy", folder / "answers" / "ex9_toy.py", spec, double, (Check(any_number),))


def test_a_right_answer_passes_with_its_receipt(keep: Keep, tmp_path: Path) -> None:
    result = checked(FILTERS, RIGHT, tmp_path, keep)
    assert result.status == "passed"
    receipt = result.receipt
    assert receipt.registered == receipt.collected == receipt.run == len(FILTERS.checks)
    assert receipt.files == ((FILTERS.file, hashlib.sha256(RIGHT.encode()).hexdigest()),)
    assert receipt.lines_run == receipt.lines == 10


@pytest.mark.parametrize(
    ("source", "status", "says"),
    [
        (stubs.stub(FILTERS, CHAPTER), "not begun", ""),
        ("", "not run", "has no function threshold"),
        ("def threshold(:", "not run", "cannot be run: SyntaxError"),
        ("from nanoinfer.engine.sampling import threshold\n", "refused", "nanoinfer.engine.sampling.threshold"),
    ],
)
def test_what_is_no_answer_has_a_status_of_its_own(
    keep: Keep, tmp_path: Path, source: str, status: str, says: str
) -> None:
    result = checked(FILTERS, source, tmp_path, keep)
    assert result.status == status
    assert says in result.problem + result.checks[0].note if result.checks else result.problem
    assert status != "not run" or (result.receipt.collected, result.receipt.run) == (0, 0)


def test_right_results_without_a_line_of_ones_own_are_not_passed(keep: Keep, tmp_path: Path) -> None:
    """A function that is none of the learner's file: the results are right, and nothing of theirs was run."""
    result = checked(toy(tmp_path), "import torch\ndouble = torch.neg\n", tmp_path, keep)
    assert all(check.status == "passed" for check in result.checks)
    assert result.status == "not run"
    assert checked(toy(tmp_path), "def double(x):\n    return -x\n", tmp_path, keep).status == "passed"


def test_passed_needs_every_registered_check() -> None:
    """The one place where `passed` is said looks at the receipt, and not at the checks alone."""
    passed = CheckResult("a", "", "passed", 1)

    def status(registered: int, collected: int, run: int, lines: int, *checks: CheckResult) -> str:
        receipt = Receipt((), registered, collected, run, lines, 5, (), "cpu", "")
        return ExerciseResult("1.1", "", "f.py", checks, receipt).status

    assert status(1, 1, 1, 3, passed) == "passed"
    assert status(2, 1, 1, 3, passed) == "not run"
    assert status(2, 2, 1, 3, passed, CheckResult("b", "", "not run", 0)) == "not run"
    assert status(1, 1, 1, 0, passed) == "not run"
    assert status(0, 0, 0, 0) == "not run"


ENDINGS = [
    ("while True: pass", ["hung"], "line 3: while True: pass"),
    ("__import__('os').abort()", ["crashed", "passed"], ""),
]


@pytest.mark.parametrize(("ending", "statuses", "place"), ENDINGS)
def test_a_crash_costs_its_check_alone_and_a_hang_ends_them_at_its_line(
    keep: Keep, tmp_path: Path, ending: str, statuses: list[str], place: str
) -> None:
    def longest(case: Case) -> Call:
        """It is minus x, of four numbers."""
        return call(case.floats("x", 4))

    exercise = toy(tmp_path)
    exercise = replace(exercise, checks=(exercise.checks[0], Check(longest), Check(exercise.checks[0].make)))
    source = f"def double(x):\n    if len(x) == 4:\n        {ending}\n    return -x\n"
    said = list[str]()
    result = checked(exercise, source, tmp_path, keep, say=said.append)
    assert [check.status for check in result.checks] == ["passed", *statuses]
    waited = "1.9: check 2 of 3, longest: waiting for your code, at most 1 s of its time"
    assert statuses[0] != "hung" or waited in said
    assert statuses[0] != "hung" or any("Check 2 of 3" in line for line, _ in result_lines(result, exercise, CHAPTER))
    assert result.status == statuses[0]
    assert place in result.checks[1].note


def test_a_result_that_changes_from_call_to_call_fails(keep: Keep, tmp_path: Path) -> None:
    source = "calls = []\ndef double(x):\n    calls.append(1)\n    return -x + (len(calls) == 2)\n"
    assert checked(toy(tmp_path), source, tmp_path, keep).status == "failed"


BLOCK = right_file(chapters.exercise("1.2"))
HEADS = BLOCK.replace("view(N, 3, n_head, C // n_head)", "view(N, n_head, 3, C // n_head).transpose(1, 2)")


def test_a_long_input_is_made_short(keep: Keep, tmp_path: Path) -> None:
    """The first input with several heads has 300 tokens; two of them show it as well."""
    result = checked(chapters.exercise("1.2"), HEADS, tmp_path, keep)
    first = next(check.failure for check in result.checks if check.failure)
    assert dict(first.inputs)["x"].startswith("[[")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (BLOCK.replace("    x = x + linear", "    x += linear"), "its argument x"),
        (BLOCK.replace("    N, C =", "    weights['more'] = x\n    N, C ="), "its argument weights"),
        (BLOCK.replace("    N, C =", "    __import__('torch').rand(1)\n    N, C ="), "torch's random state"),
    ],
)
def test_what_a_call_has_changed_is_named(keep: Keep, tmp_path: Path, source: str, what: str) -> None:
    result = checked(chapters.exercise("1.2"), source, tmp_path, keep)
    first = next(check.failure for check in result.checks if check.failure)
    assert first.got == f"a call that has changed {what}"


def test_a_failure_is_shown_on_the_smallest_input(keep: Keep, tmp_path: Path) -> None:
    result = checked(FILTERS, answer("1.4", "crossing-dropped"), tmp_path, keep)
    (found,) = (check.failure for check in result.checks if check.name == "top-p" and check.failure)
    assert found.shrunk
    assert dict(found.inputs)["scores"].count(",") == 2  # one row of three ids, the fewest that this check makes
    assert found.where == "row 0, column 0"
    assert found.expected != found.got


# Mistakes by their names


def test_a_mistake_is_named_only_where_it_was_looked_for(keep: Keep, tmp_path: Path) -> None:
    """Meanwhile each check and each known mistake is said to whoever waits."""
    source, said = answer("1.4", "unsorted"), list[str]()
    first = checked(FILTERS, source, tmp_path, keep)
    assert first.mistake is None
    second = checked(FILTERS, source, tmp_path, keep, name_mistakes=True, say=said.append)
    assert second.mistake is not None
    assert (second.mistake[0], second.close) == ("unsorted", False)
    assert said[0] == f"1.4: check 1 of {len(FILTERS.checks)}, {FILTERS.checks[0].name}"
    assert any("known mistake" in text for text in said)


def test_an_unknown_mistake_is_not_taken_for_a_known_one(keep: Keep, tmp_path: Path) -> None:
    source = RIGHT.replace("return torch.maximum(kth, by_p)", "return torch.maximum(kth, by_p) + 0.01")
    result = checked(FILTERS, source, tmp_path, keep, name_mistakes=True)
    assert result.status == "failed"
    assert result.mistake is None


CAUSAL = """from torch.nn.functional import scaled_dot_product_attention
def attention(q, k, v, positions):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
"""
BEYOND = """def last_logits(hidden, lengths, wte, vocab_size):
    return hidden[range(len(hidden)), lengths] @ wte[:vocab_size].T
"""
P_FIRST = RIGHT.replace("descending.masked_fill(descending < kth, -torch.inf)", "descending")
P_FIRST = P_FIRST.replace("torch.where(top_p[:, None] < 1, by_p, -torch.inf)", "by_p")
STEP = right_file(chapters.exercise("4.1"))
REBOUND = STEP.replace("position.add_(live)", "position = position + live").replace("token.copy_(", "token = (")


@pytest.mark.parametrize(
    ("id", "source", "name"),
    [("1.1", CAUSAL, "rows-not-positions"), ("1.3", BEYOND, "length-as-index"), ("1.4", P_FIRST, "p-before-k")],
)
def test_a_known_mistake_beside_another_is_close(id: str, source: str, name: str, keep: Keep, tmp_path: Path) -> None:
    """One that differs in odd inputs, raises an error, or forgets top_p = 1 besides."""
    result = checked(chapters.exercise(id), source, tmp_path, keep, name_mistakes=True)
    assert result.mistake is not None
    assert (result.mistake[0], result.close) == (name, True)


def test_the_simplest_failing_check_comes_first_and_it_alone_is_shrunk(keep: Keep, tmp_path: Path) -> None:
    """Of a step that leaves neither tokens nor positions for the next; the second is what is named."""
    result = checked(chapters.exercise("4.1"), REBOUND, tmp_path, keep, name_mistakes=True)
    first, *others = (check for check in result.checks if check.failure)
    assert first.name == "one-graph"
    assert first.failure is not None
    assert dict(first.failure.inputs)["script"].count("'rows'") == 2  # the fewest steps of this check
    assert others[-1].name == "any-numbers"
    assert not any(check.failure.shrunk for check in others if check.failure)
    assert result.mistake is not None
    assert (result.mistake[0], result.close) == ("positions-rebound", True)


def test_a_coincidence_and_a_right_answer_have_no_name() -> None:
    """A row's minimum is what `scores-summed` gives wherever it keeps all ids: it takes other checks to tell them."""
    tells = Tells(FILTERS, "course")
    assert tells.name(lambda asked: Returned(FILTERS.function(*asked.args))) is None
    assert tells.name(lambda asked: Returned(asked.args[0].amin(-1, keepdim=True))) is None
    assert len({check.name for ((check, _),), _ in tells.found["scores-summed"]}) == 3


@pytest.mark.parametrize(
    "exercise", [one for one in EXERCISES if one.spec.verdicts and one.chapter <= 5], ids=lambda one: one.id
)
@pytest.mark.parametrize("body", ["assert False", "return None"])
def test_a_test_that_does_no_work_is_given_no_diagnosis(
    exercise: Exercise, body: str, keep: Keep, tmp_path: Path
) -> None:
    source = f"def {exercise.name}(*given, **named):\n    {body}\n"
    result = checked(exercise, source, tmp_path, keep, name_mistakes=True)
    assert result.status == "failed"
    assert result.mistake is None


def test_a_patch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="stands 0 times"):
        sources.answer_source(FILTERS, Wrong("a", "b", "c", ("no such text", "")))
