"""One submission: its assignment, the hidden inputs, what gets points, what gets none, and what is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nanocourse.exercises import chapters, stubs
from nanocourse.grade import hidden_inputs
from nanocourse.grade.allowed_imports import helper_modules
from nanocourse.grade.assignment import Assignment, Limits, Part, inputs_seed, load_secret, new_secret, secret_mark
from nanocourse.grade.grade_submission import NotIsolated, grade_submission
from nanocourse.grade.graded_worker import GradedWorker, Unconfined
from nanocourse.grade.isolation import system
from nanocourse.grade.record import GradeRecord
from nanocourse.grade.variant_strength import variant_strength
from tests.course.learner_files import EXERCISES, answer, right_file

SECRET = "0f" * 32
QUICK = Limits(submission_s=120.0, check_s=1.0)
ONE = Assignment(1, "Chapter 1", (Part("1.3", 6.0),), seeds=2, limits=QUICK)
HANG = "def last_logits(hidden, lengths, wte, vocab_size):\n    while True: pass\n"
LAST = chapters.exercise("1.3")


def submitted(folder: Path, source: str | bytes, name: str = "ex3_last.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(source if isinstance(source, bytes) else source.encode())
    return folder


def test_an_edition_is_graded_as_it_was_released(tmp_path: Path) -> None:
    """Its stub is not begun, and the published solution of the printed form is no solution of it."""
    edition = LAST.as_edition("time-first")
    asked = Assignment(1, "x", (Part("1.3", 10, "time-first"),), seeds=2, limits=QUICK)
    sources = (stubs.stub(edition, chapters.chapter(1)), right_file(edition), right_file(LAST))
    stub, right, printed = (
        grade_submission(submitted(tmp_path, source), asked, SECRET, "me").exercises[0] for source in sources
    )
    assert {check.status for check in stub.checks} == {"not begun"}
    assert (stub.points, right.points) == (0, 10)
    assert printed.points < 10


def test_partial_credit_is_a_checks_share_and_a_mistake_is_named(tmp_path: Path) -> None:
    asked = Assignment(1, "x", (Part("1.1"),), limits=QUICK)
    folder = submitted(tmp_path / "s", answer("1.1", "first-rows-positions"), "ex1_attention.py")
    (got,) = grade_submission(folder, asked, SECRET, "me").exercises
    assert [check.status for check in got.checks].count("failed") == 2
    assert all((check.points > 0) == (check.status == "passed") for check in got.checks)
    assert (got.points, got.mistake) == (6, "first-rows-positions")


def test_a_record_is_written_after_each_check(tmp_path: Path) -> None:
    """A hang costs its check, and what was said before it stays."""
    seen: list[GradeRecord] = []
    final = grade_submission(submitted(tmp_path / "s", HANG), ONE, SECRET, "me", said=seen.append)
    assert final.complete
    assert not any(record.complete for record in seen[:-1])
    decided = [sum(check.status != "not run" for check in record.exercises[0].checks) for record in seen]
    assert decided == sorted(decided)
    assert len(LAST.checks) in decided[:-1]
    assert {check.status for check in final.exercises[0].checks} == {"hung"}
    assert final.points == 0


@pytest.mark.parametrize(
    ("name", "source", "says"),
    [("ex3_last.py", "x = 1", "has no function last_logits"),
     ("ex3_last.py", "raise RuntimeError('\\x1b[2J' * 500)", "cannot be run: RuntimeError: ?[2J?[2J"),
     ("other.py", "", "there is no file ex3_last.py")],
)  # fmt: skip
def test_what_cannot_be_run_is_told(tmp_path: Path, name: str, source: str, says: str) -> None:
    record = grade_submission(submitted(tmp_path / "s", source, name), ONE, SECRET, "me")
    assert says in record.exercises[0].problem
    assert len(record.exercises[0].problem) <= 200
    assert (record.points, record.complete) == (0, True)


def test_isolation_may_be_required(tmp_path: Path) -> None:
    with pytest.raises(NotIsolated, match="bubblewrap"):
        grade_submission(submitted(tmp_path, HANG), ONE, SECRET, "me", require_isolation=True, layers=("limits",))


def test_where_nothing_isolates_it_is_said_and_calls_are_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS and Windows: no layers at all. A call of the reference is refused as in a learner's own checks."""
    monkeypatch.setattr(system, "LINUX", False)
    source = "from nanoinfer.engine.sampling import threshold as f\ndef threshold(*args):\n    return f(*args)\n"
    asked = Assignment(1, "x", (Part("1.4"),), seeds=1)
    record = grade_submission(submitted(tmp_path / "s", source, "ex4_filters.py"), asked, SECRET, "me", layers=())
    assert record.isolation.told().startswith("not isolated, time limits only")
    assert not record.isolation.whole
    assert {check.status for check in record.exercises[0].checks} == {"refused"}
    assert record.points == 0


def test_a_worker_that_is_not_confined_as_the_probe_was_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GradedWorker, "confine", lambda self, policy: {"bubblewrap": "gone"})
    with pytest.raises(Unconfined, match="gone"):
        grade_submission(submitted(tmp_path / "s", HANG), ONE, SECRET, "me")


def test_an_assignment_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for part, says in ((Part("1.99"), "none is 1.99"), (Part("1.3", 1, "sideways"), "no edition")):
        with pytest.raises(ValueError, match=says):
            grade_submission(tmp_path, Assignment(1, "x", (part,)), SECRET, "me")


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


def test_helpers_stand_alone_and_hold_no_answer() -> None:
    for exercise in EXERCISES:
        for source in helper_modules(exercise).values():
            space: dict[str, object] = {}
            exec(compile(source, "helper", "exec"), space)
            assert exercise.name not in space
            assert "nanoinfer" not in source
    noise = chapters.exercise("1.5")
    assert "def random_bits" in helper_modules(noise)["nanoinfer.engine.sampling"]


def test_a_variants_strength_and_its_weakness_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (strong,) = variant_strength(Assignment(1, "x", (Part("1.1", 10, "heads-first"),), seeds=2), SECRET)
    assert (strong.missed, strong.caught) == ((), strong.total)
    exercise = chapters.exercise("1.1")
    weak = replace(exercise, checks=exercise.checks[:1])
    monkeypatch.setattr("nanocourse.grade.variant_strength.exercises_of", lambda a: [(a.parts[0], weak)])
    (one,) = variant_strength(Assignment(1, "x", (Part("1.1"),), seeds=2), SECRET)
    assert "rows-not-positions" in one.missed
    assert one.caught < one.total
