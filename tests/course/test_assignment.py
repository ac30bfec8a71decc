"""Assignments, their secret, the hidden inputs that it gives, and what of the package is lent to an answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nanocourse.exercises import chapters
from nanocourse.exercises.outcomes import Raised, Returned
from nanocourse.grade import hidden_inputs
from nanocourse.grade.allowed_imports import helper_modules
from nanocourse.grade.assignment import Assignment, Limits, Part, inputs_seed, load_secret, new_secret, secret_mark
from nanocourse.grade.grade_submission import Secret
from nanocourse.grade.variant_strength import variant_strength
from tests.course.learner_files import EXERCISES

SECRET = "0f" * 32
LAST = chapters.exercise("1.3")


def test_an_assignment_survives_its_file(tmp_path: Path) -> None:
    made = Assignment(2, "Zwei", (Part("2.1"), Part("2.10", 2.5, "read-by")), seeds=3, limits=Limits(memory_mb=100))
    made.save(tmp_path)
    assert Assignment.load(tmp_path) == Assignment.load(tmp_path / "assignment.json") == made
    assert made.points == 12.5
    assert made.fingerprint != replace(made, title="Drei").fingerprint


WRONG = [
    ({"schema": "x"}, "not an assignment"), ({"schema_version": 2}, "schema version 2"),
    ({"chapter": "1"}, "chapter must"), ({"title": " "}, "title must"), ({"exercises": []}, "at least one"),
    ({"exercises": {}}, "must be a list"), ({"exercises": [{"id": "2.1"}]}, "of chapter 1"),
    ({"exercises": [{"id": "1.1", "points": True}]}, "above 0"), ({"exercises": ["1.1"]}, "must be an object"),
    ({"exercises": [{"id": "1.1"}] * 2}, "named twice"), ({"exercises": [{"id": "1.1", "edition": 3}]}, "edition of"),
    ({"seeds": 0}, "seeds must"), ({"limits": {"memory_mb": 0.5}}, "memory_mb must"), ({"secret": ""}, "no 'secret'"),
    ("[1]", ""), ("{", ""),
]  # fmt: skip


@pytest.mark.parametrize(("change", "says"), WRONG)
def test_what_is_no_assignment_is_refused_in_one_sentence(
    tmp_path: Path, change: dict[str, object] | str, says: str
) -> None:
    good = json.loads(Assignment(1, "Chapter 1", (Part("1.3", 6.0),)).to_json())
    (tmp_path / "assignment.json").write_text(change if isinstance(change, str) else json.dumps(good | change))
    with pytest.raises(ValueError, match=says) as refused:
        Assignment.load(tmp_path)
    assert "\n" not in str(refused.value)
    assert "assignment.json" in str(refused.value)


def test_the_secret(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text(new_secret().upper() + "\r\n")
    assert load_secret(tmp_path) == load_secret(tmp_path / "assignment.json") == load_secret(tmp_path / "secret.txt")
    for text, says in (("ab", "at least 32"), ("not hex" * 20, "hexadecimal")):
        (tmp_path / "secret.txt").write_text(text)
        with pytest.raises(ValueError, match=says):
            load_secret(tmp_path)
    with pytest.raises(ValueError, match="cannot be read"):
        load_secret(tmp_path / "none")
    assert secret_mark(SECRET) not in SECRET
    assert "0f0f" not in repr(Secret(SECRET))


def test_seeds_of_inputs() -> None:
    """One of each differs; names cannot be put together to give another's; and the value is HMAC-SHA256's, for ever."""
    seeds = {
        inputs_seed(SECRET, "a", "1.1", 0), inputs_seed("f0" * 32, "a", "1.1", 0), inputs_seed(SECRET, "b", "1.1", 0),
        inputs_seed(SECRET, "a", "1.2", 0), inputs_seed(SECRET, "a", "1.1", 1), inputs_seed(SECRET, 'a", "1.1', "", 0),
    }  # fmt: skip
    assert len(seeds) == 6
    assert inputs_seed(SECRET, "a", "1.1", 0) == "0f218af4c305b283d8b4cece6d41e8b7811dc4b0170d5bfc8b99b36843a88983"


def test_the_order_of_questions_is_the_secrets_and_one_of_each_check_comes_twice() -> None:
    orders = [[q.seed for q in hidden_inputs.questions(LAST, secret, "a", 4)] for secret in (SECRET, SECRET, "f0" * 32)]
    assert orders[0] == orders[1]
    assert not set(orders[0]) & set(orders[2])
    names = [q.check.name for q in hidden_inputs.questions(LAST, SECRET, "a", 4)]
    assert len(names) == sum(4 * check.cases + 1 for check in LAST.checks)
    once = names[: -len(LAST.checks)]
    assert once != sorted(once, key=once.index)  # not check by check
    again = {seed for seed in orders[0] if orders[0].count(seed) == 2}
    assert {seed.split("/")[1] for seed in again} == {check.name for check in LAST.checks}


def test_a_comparison_that_stumbles_is_a_failure() -> None:
    (question, *_) = hidden_inputs.questions(LAST, SECRET, "a", 1)
    for value in (10**400, float("nan"), "x" * 1000, True):
        assert hidden_inputs.judged(LAST, question, Returned(value)) == "failed"
    assert hidden_inputs.judged(LAST, question, LAST.expected(question.call(LAST))) == "passed"


@pytest.mark.parametrize(("id", "passed"), [("1.8", {"padded-rows", "second-call"}), ("2.5", {"row-of-nobody"})])
def test_answers_without_work_are_known(id: str, passed: set[str]) -> None:
    """They never pass a whole exercise; an error is an answer only where it is right."""
    exercise = chapters.exercise(id)
    asked = hidden_inputs.questions(exercise, SECRET, "a", 1)
    assert hidden_inputs.worthless(exercise, passed, asked)
    assert not hidden_inputs.worthless(exercise, {check.name for check in exercise.checks}, asked)
    assert not hidden_inputs.worthless(exercise, set(), asked)
    if id == "1.8":
        raised = Raised("AssertionError", "")
        failed = {q.check.name for q in asked if hidden_inputs.judged(exercise, q, raised) == "failed"}
        assert failed == {"near-ties"}


def test_helpers_stand_alone_and_hold_no_answer() -> None:
    for exercise in EXERCISES:
        for source in helper_modules(exercise).values():
            space: dict[str, object] = {}
            exec(compile(source, "helper", "exec"), space)
            assert exercise.name not in space
            assert "nanoinfer" not in source
    noise = chapters.exercise("1.5")
    assert "def random_bits" in helper_modules(noise)["nanoinfer.engine.sampling"]
    lent = replace(noise.spec, imports=("from nanoinfer.engine.sampling import gumbel",))
    with pytest.raises(ValueError, match="lends the function that it asks for"):
        helper_modules(replace(noise, spec=lent))


def test_a_variants_strength_and_its_weakness_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (Part("1.1", 10, "heads-first"), Part("1.3"))
    strong = variant_strength(Assignment(1, "x", parts, seeds=2), SECRET)
    assert [(one.id, one.missed, one.refused) for one in strong] == [("1.1", (), 0), ("1.3", (), 0)]
    assert all(one.caught == one.total > 12 for one in strong)
    exercise = chapters.exercise("1.1")
    weak = replace(exercise, checks=exercise.checks[:1])
    monkeypatch.setattr("nanocourse.grade.variant_strength.exercises_of", lambda a: [(a.parts[0], weak)])
    (one,) = variant_strength(Assignment(1, "x", (Part("1.1"),), seeds=2), SECRET)
    assert "rows-not-positions" in one.missed
    assert one.caught < one.total
