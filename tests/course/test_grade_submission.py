"""Assignments, hidden inputs, and the grading of one submission: what gets points, what gets none, and what is told."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nanocourse.checks import wire
from nanocourse.exercises import chapters, sources, stubs
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import Raised, Returned, local
from nanocourse.grade import hidden_inputs
from nanocourse.grade.allowed_imports import helper_modules
from nanocourse.grade.assignment import Assignment, Limits, Part, inputs_seed, load_secret, new_secret, secret_mark
from nanocourse.grade.grade_submission import NotIsolated, Secret, _untouched, grade_submission
from nanocourse.grade.graded_worker import LENT_BYTES, MAX_ASKS, GradedWorker, Pool, Setting, Unconfined
from nanocourse.grade.isolation import system
from nanocourse.grade.mark import NAMING_S, Budget, Marking
from nanocourse.grade.record import ExerciseGrade, GradeRecord
from nanocourse.grade.variant_strength import variant_strength
from nanocourse.grade.workspace import Workspace

SECRET = "0f" * 32
QUICK = Limits(submission_s=120.0, check_s=1.0)
ONE = Assignment(1, "Chapter 1", (Part("1.3", 6.0),), seeds=2, limits=QUICK)


# The assignment


def test_an_assignment_survives_its_file(tmp_path: Path) -> None:
    made = Assignment(2, "Zwei", (Part("2.1"), Part("2.10", 2.5, "read-by")), seeds=3, limits=Limits(memory_mb=100))
    made.save(tmp_path)
    assert Assignment.load(tmp_path) == Assignment.load(tmp_path / "assignment.json") == made
    assert made.points == 12.5
    assert made.fingerprint != replace(made, title="Drei").fingerprint


WRONG = [
    ({"schema": "x"}, "not an assignment"),
    ({"schema_version": 2}, "schema version 2"), ({"chapter": "1"}, "chapter must"),
    ({"title": " "}, "title must"), ({"exercises": []}, "at least one"), ({"exercises": {}}, "must be a list"),
    ({"exercises": [{"id": "2.1"}]}, "of chapter 1"), ({"exercises": [{"id": "1.x"}]}, "of chapter 1"),
    ({"exercises": [{"id": 1.1}]}, "of chapter 1"), ({"exercises": [{"id": "1.1", "points": 0}]}, "above 0"),
    ({"exercises": [{"id": "1.1", "points": True}]}, "above 0"), ({"exercises": ["1.1"]}, "must be an object"),
    ({"exercises": [{"id": "1.1"}] * 2}, "named twice"), ({"exercises": [{"id": "1.1", "edition": 3}]}, "edition of"),
    ({"exercises": [{"id": "1.1", "weight": 3}]}, "no 'weight'"), ({"seeds": 0}, "seeds must"),
    ({"seeds": True}, "seeds must"), ({"limits": {"check_s": -1}}, "check_s must"), ({"limits": {"x": 1}}, "no 'x'"),
    ({"limits": {"memory_mb": 0.5}}, "memory_mb must"), ({"limits": 5}, "must be an object"),
    ({"secret": ""}, "no 'secret'"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "says"), WRONG)
def test_what_is_no_assignment_is_refused_in_one_sentence(tmp_path: Path, change: dict[str, object], says: str) -> None:
    (tmp_path / "assignment.json").write_text(json.dumps(json.loads(ONE.to_json()) | change))
    with pytest.raises(ValueError, match=says) as refused:
        Assignment.load(tmp_path)
    assert "\n" not in str(refused.value)
    assert "assignment.json" in str(refused.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", "\x00"])
def test_what_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "assignment.json").write_text(text)
    with pytest.raises(ValueError, match=r"assignment\.json"):
        Assignment.load(tmp_path)


def test_the_secret(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text(new_secret().upper() + "\r\n")
    assert load_secret(tmp_path) == load_secret(tmp_path / "assignment.json") == load_secret(tmp_path / "secret.txt")
    for text, says in (("ab", "at least 32"), ("not hex" * 20, "hexadecimal"), ("", "at least 32")):
        (tmp_path / "secret.txt").write_text(text)
        with pytest.raises(ValueError, match=says):
            load_secret(tmp_path)
    with pytest.raises(ValueError, match="cannot be read"):
        load_secret(tmp_path / "none")
    assert len(bytes.fromhex(new_secret())) == 32
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


# Hidden inputs


@pytest.fixture(scope="module")
def last() -> Exercise:
    return chapters.exercise("1.3")


def test_the_order_is_the_secrets(last: Exercise) -> None:
    orders = [[q.seed for q in hidden_inputs.questions(last, secret, "a", 4)] for secret in (SECRET, SECRET, "f0" * 32)]
    assert orders[0] == orders[1]
    assert not set(orders[0]) & set(orders[2])
    names = [q.check.name for q in hidden_inputs.questions(last, SECRET, "a", 4)]
    assert len(names) == sum(4 * check.cases + 1 for check in last.checks)
    once = names[: -len(last.checks)]
    assert once != sorted(once, key=once.index)  # not check by check


def test_each_check_is_asked_one_question_twice(last: Exercise) -> None:
    seeds = [q.seed for q in hidden_inputs.questions(last, SECRET, "a", 2)]
    again = {seed for seed in seeds if seeds.count(seed) == 2}
    assert {seed.split("/")[1] for seed in again} == {check.name for check in last.checks}


def test_a_comparison_that_stumbles_is_a_failure(last: Exercise) -> None:
    (question, *_) = hidden_inputs.questions(last, SECRET, "a", 1)
    for value in (10**400, [10**400], {"a": 1}, float("nan"), "x" * 1000, True):
        assert hidden_inputs.judged(last, question, Returned(value)) == "failed"
    assert hidden_inputs.judged(last, question, last.expected(question.call(last))) == "passed"


@pytest.mark.parametrize(("id", "passed"), [("1.8", {"padded-rows", "second-call"}), ("2.5", {"row-of-nobody"})])
def test_answers_without_work_are_known(id: str, passed: set[str]) -> None:
    exercise = chapters.exercise(id)
    asked = hidden_inputs.questions(exercise, SECRET, "a", 1)
    assert hidden_inputs.worthless(exercise, passed, asked)
    assert not hidden_inputs.worthless(exercise, {check.name for check in exercise.checks}, asked)
    assert not hidden_inputs.worthless(exercise, set(), asked)


def test_an_error_is_an_answer_only_where_it_is_right() -> None:
    exercise = chapters.exercise("1.8")
    verdicts = {
        q.check.name: hidden_inputs.judged(exercise, q, Raised("AssertionError", ""))
        for q in hidden_inputs.questions(exercise, SECRET, "a", 1)
    }
    assert [name for name, status in verdicts.items() if status == "failed"] == ["near-ties"]


# What is lent


def test_helpers_stand_alone_and_hold_no_answer() -> None:
    for chapter in chapters.chapters():
        for exercise in chapters.exercises(chapter):
            for source in helper_modules(exercise).values():
                space: dict[str, object] = {}
                exec(compile(source, "helper", "exec"), space)
                assert exercise.name not in space
                assert "nanoinfer" not in source
    noise = chapters.exercise("1.5")
    assert "def random_bits" in helper_modules(noise)["nanoinfer.engine.sampling"]
    with pytest.raises(ValueError, match="lends the function that it asks for"):
        helper_modules(
            replace(noise, spec=replace(noise.spec, imports=("from nanoinfer.engine.sampling import gumbel",)))
        )


def test_lent_functions_are_asked_a_bounded_number_of_times() -> None:
    worker = GradedWorker.__new__(GradedWorker)
    worker._asks, worker._most, worker.asked = MAX_ASKS - 1, MAX_ASKS, set()
    asked = {"function": 0, "args": []}
    worker._lent_until = math.inf
    assert worker._lend([lambda: 5], asked, b"")[0] == {"op": "value", "value": 5}
    with pytest.raises(wire.WireError, match="too often"):
        worker._lend([lambda: 5], asked, b"")
    worker._asks = 0
    with pytest.raises(wire.WireError, match="too much"):
        worker._lend([lambda: 5], asked, bytes(LENT_BYTES + 1))
    worker._lent_until = 0.0
    with pytest.raises(wire.WireError, match="too often"):
        worker._lend([lambda: 5], asked, b"")


# One submission


class KeepPool(Pool):
    """Keeps one worker for many files of one exercise: importing torch for each would take minutes."""

    def __init__(self) -> None:
        super().__init__(spares=False)
        self.kept: GradedWorker | None = None

    def take(self, setting: Setting, compiling: bool = False) -> tuple[GradedWorker, dict[str, str]]:
        if self.kept is None or not self.kept.alive:
            self.kept, missing = super().take(setting, compiling)
            return self.kept, missing
        return self.kept, {}


class Desk:
    """Marks sources of one exercise, one after the other."""

    def __init__(self, exercise: Exercise, workspace: Workspace, pool: KeepPool) -> None:
        self.exercise, self.workspace, self.pool = exercise, workspace, pool

    def mark(self, source: str, naming: bool = False) -> ExerciseGrade:
        part = Part(self.exercise.id)
        path = self.workspace.stage(self.exercise, source.encode(), {})
        blank = _untouched(part, self.exercise)
        budget = Budget(time.monotonic() + NAMING_S * (2 if naming else 0.9), 10.0)  # to look for names takes seconds
        marking = Marking(self.exercise, part, path, self.workspace, self.pool, budget, blank, "tells")
        return marking.run(SECRET, "student", 8, lambda grade: None)


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with system.guarded(), Workspace((), QUICK) as workspace:
        workspace.isolation({})
        pool = KeepPool()
        yield Desk(chapters.exercise("1.1").as_edition("heads-first"), workspace, pool)
        pool.close()


def test_stub_reference_and_wrong_answers_of_an_edition(desk: Desk) -> None:
    """In the edition that a release drew. Its answers are written for it; the chapter's are of the printed form."""
    exercise = desk.exercise
    stub = desk.mark(stubs.stub(exercise, chapters.chapter(1)))
    assert (stub.points, stub.mistake) == (0, "")
    assert {check.status for check in stub.checks} == {"not begun"}
    right = desk.mark(sources.whole_file(exercise, exercise.function, sources.function_source(exercise.function)))
    assert right.points == right.of == 10
    plain = chapters.exercise("1.1")
    printed = desk.mark(sources.whole_file(plain, plain.function, sources.function_source(plain.function)))
    assert printed.points < 10  # the published solution is no solution of this edition


def test_every_wrong_answer_loses_points(desk: Desk) -> None:
    plain = Desk(chapters.exercise("1.1"), desk.workspace, desk.pool)
    for at, wrong in enumerate(plain.exercise.real_wrong):
        got = plain.mark(sources.answer_source(plain.exercise, wrong), naming=at == 4)
        assert got.points < 10, wrong.name
        assert got.mistake == (wrong.name if at == 4 else "")
        assert all((check.points > 0) == (check.status == "passed") for check in got.checks)
    for right in plain.exercise.right:
        assert plain.mark(sources.answer_source(plain.exercise, right)).points == 10, right.name


def test_partial_credit_is_a_checks_share(desk: Desk) -> None:
    plain = Desk(chapters.exercise("1.1"), desk.workspace, desk.pool)
    (rows,) = (wrong for wrong in plain.exercise.wrong if wrong.name == "first-rows-positions")
    got = plain.mark(sources.answer_source(plain.exercise, rows))
    assert [check.status for check in got.checks].count("failed") == 2
    assert got.points == 6


def submitted(folder: Path, source: str, name: str = "ex3_last.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(source)
    return folder


HANG = "def last_logits(hidden, lengths, wte, vocab_size):\n    while True: pass\n"


def test_a_record_is_written_after_each_check(tmp_path: Path, last: Exercise) -> None:
    """A hang costs its check, and what was said before it stays."""
    seen: list[GradeRecord] = []
    final = grade_submission(submitted(tmp_path / "s", HANG), ONE, SECRET, "me", said=seen.append)
    assert final.complete
    assert not any(record.complete for record in seen[:-1])
    decided = [sum(check.status != "not run" for check in record.exercises[0].checks) for record in seen]
    assert decided == sorted(decided)
    assert len(last.checks) in decided[:-1]
    assert {check.status for check in final.exercises[0].checks} == {"hung"}
    assert final.points == 0


@pytest.mark.parametrize(
    ("source", "says"),
    [("def (:", "cannot be run: SyntaxError"), ("x = 1", "has no function last_logits"),
     ("raise RuntimeError('\\x1b[2J' * 500)", "cannot be run: RuntimeError: ?[2J?[2J")],
)  # fmt: skip
def test_what_cannot_be_run_is_told(tmp_path: Path, source: str, says: str) -> None:
    (one,) = grade_submission(submitted(tmp_path / "s", source), ONE, SECRET, "me").exercises
    assert says in one.problem
    assert len(one.problem) <= 200
    assert one.points == 0


def test_files_as_windows_writes_them(tmp_path: Path, last: Exercise) -> None:
    source = sources.whole_file(last, last.function, sources.function_source(last.function))
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "doe_12_ex3_last-1.py").write_bytes(source.replace("\n", "\r\n").encode("utf-16"))
    record = grade_submission(tmp_path / "s", ONE, SECRET, "me")
    assert record.points == record.of == 6
    assert record.exercises[0].file == "doe_12_ex3_last-1.py"


def test_a_missing_file_costs_itself_alone(tmp_path: Path) -> None:
    record = grade_submission(submitted(tmp_path / "s", "", "other.py"), ONE, SECRET, "me")
    assert record.exercises[0].problem == "there is no file ex3_last.py"
    assert record.complete


def test_isolation_may_be_required(tmp_path: Path) -> None:
    with pytest.raises(NotIsolated, match="seccomp"):
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
    monkeypatch.setattr(GradedWorker, "confine", lambda self, setting: {"seccomp": "gone"})
    with pytest.raises(Unconfined, match="gone"):
        grade_submission(submitted(tmp_path / "s", HANG), ONE, SECRET, "me")


def test_an_assignment_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for part, says in ((Part("1.99"), "none is 1.99"), (Part("1.3", 1, "sideways"), "no edition")):
        with pytest.raises(ValueError, match=says):
            grade_submission(tmp_path, Assignment(1, "x", (part,)), SECRET, "me")


# How strong a variant is


def test_the_strength_of_a_variant() -> None:
    parts = (Part("1.1", 10, "heads-first"), Part("1.3"))
    strong = variant_strength(Assignment(1, "x", parts), SECRET)
    assert [(one.id, one.missed, one.refused) for one in strong] == [("1.1", (), 0), ("1.3", (), 0)]
    assert all(one.caught == one.total > 12 for one in strong)


def test_a_weak_variant_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    exercise = chapters.exercise("1.1")
    weak = replace(exercise, checks=exercise.checks[:1])
    monkeypatch.setattr("nanocourse.grade.variant_strength.exercises_of", lambda a: [(a.parts[0], weak)])
    (one,) = variant_strength(Assignment(1, "x", (Part("1.1"),)), SECRET)
    assert "rows-not-positions" in one.missed
    assert one.caught < one.total


def test_idle_answers_never_pass_a_whole_exercise() -> None:
    for id in ("1.3", "1.6", "1.7"):
        exercise = chapters.exercise(id)
        asked = hidden_inputs.questions(exercise, SECRET, "a", 1)
        assert not hidden_inputs.worthless(exercise, {check.name for check in exercise.checks}, asked)
        assert not any(
            isinstance(local(answer, asked[0].call(exercise)), type(None)) for answer in hidden_inputs.idle_answers()
        )
