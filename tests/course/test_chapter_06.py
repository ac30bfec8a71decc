"""Chapter 6's exercises: their machine, how strong their checks are, their stubs, hints, quiz and editions."""

from __future__ import annotations

import inspect
import json
import random
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nanocourse.authoring import chapter_strength
from nanocourse.exercises import answers, chapters, sources
from nanocourse.exercises.cases import Case
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import local
from nanocourse.learner import predict
from nanoinfer.kernels import persistent_torch as phases
from tests.course.chapter_exercises import (
    edition_is_the_same_exercise,
    editions_are_named_in_no_text,
    enough_of_each_kind,
    figures_are_sums,
    hints_keep_the_solution,
    hints_would_give_away,
    inputs_differ,
    quiz_is_as_jupyterquiz_reads_it,
    section_exists,
    strength_is_as_stored,
    stub_has_signature_and_example,
    wrong_options_are_wrong_answers,
)

CHAPTER = chapters.chapter(6)
EXERCISES = chapters.exercises(CHAPTER)
MACHINE: Any = inspect.unwrap(chapters.exercise("6.1").spec.scene).__globals__["MACHINE"]  # type: ignore[arg-type]

each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.id)


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(chapter_strength.stored(CHAPTER).read_text(encoding="utf-8"))
    return found


def tried(*programs: Any, judge: Any = lambda returned, held: "", **settings: Any) -> str:
    """What is found of programs over the words a, b and c, which hold 0."""
    told: str = MACHINE.tried(programs, {"a": 0, "b": 0, "c": 0}, judge, **settings)[0]
    return told


class TestMachine:
    """The machine that the exercises run on."""

    def test_a_store_may_arrive_behind_a_later_one_and_a_fence_forbids_it(self) -> None:
        def sender(fence: bool) -> Any:
            yield "store", "a", 7
            if fence:
                yield ("fence",)
            yield "store", "b", 1

        def receiver() -> Any:
            yield "wait", "b", lambda held: held == 1
            return (yield "load", "a")

        def judge(returned: list[Any], held: dict[str, int]) -> str:
            return "" if returned[1] == 7 else f"it has read {returned[1]}"

        assert tried(lambda: sender(True), receiver, judge=judge) == MACHINE.RIGHT
        told = tried(lambda: sender(False), receiver, judge=judge)
        assert told.startswith("it has read 0. In this order: 0: store a = 7; 0: store b = 1; 0: b = 1 arrives;")

    def test_stores_to_one_word_arrive_in_their_order(self) -> None:
        def program() -> Any:
            yield "store", "a", 1
            yield "store", "a", 2
            return (yield "load", "a")

        assert tried(program, judge=lambda got, held: "" if (got, held["a"]) == ([2], 2) else "no") == MACHINE.RIGHT

    def test_every_order_of_two_additions_is_met(self) -> None:
        seen = set()

        def program() -> Any:
            return (yield "add", "a", 1)

        def judge(returned: list[Any], held: dict[str, int]) -> str:
            seen.add((*returned, held["a"]))
            return ""

        assert tried(program, program, judge=judge) == MACHINE.RIGHT
        assert seen == {(0, 1, 2), (1, 0, 2)}

    def test_words_come_round(self) -> None:
        def program() -> Any:
            yield "store", "a", 300
            yield "add", "b", -1
            return (yield "load", "a")

        told = tried(program, judge=lambda got, held: f"{got} {held['b']}", bits=8)
        assert told.startswith("[44] 255.")

    def test_who_waits_for_one_that_has_no_place_waits_for_ever(self) -> None:
        def program() -> Any:
            yield "add", "a", 1
            yield "wait", "a", lambda held: held == 2

        assert tried(program, program) == MACHINE.RIGHT
        assert tried(program, program, resident=1).startswith("these wait for ever: program 0, at wait a; program 1")

    @pytest.mark.parametrize("steps", [1, 2])
    def test_polls_end_where_they_may_and_hang_where_not(self, steps: int) -> None:
        def program(least: int) -> Any:
            yield "add", "a", 1
            while (yield "load", "a") < least:
                if steps == 2:
                    yield ("fence",)

        assert tried(*[lambda: program(2)] * 2) == MACHINE.RIGHT
        assert "for ever" in tried(*[lambda: program(3)] * 2) or "still run" in tried(*[lambda: program(3)] * 2)

    def test_a_bounded_wait_ends(self) -> None:
        def program() -> Any:
            for polled in range(20):
                if (yield "load", "a"):
                    return polled
            yield "store", "b", 1
            return None

        told = tried(program, judge=lambda got, held: "" if (got, held["b"]) == ([None], 1) else f"{got} {held}")
        assert told == MACHINE.RIGHT

    def test_two_loads_of_a_word_are_no_poll(self) -> None:
        def program() -> Any:
            first = yield "load", "a"
            return first, (yield "load", "a")

        def other() -> Any:
            yield "store", "a", 1

        seen = set()
        assert tried(program, other, judge=lambda got, held: seen.add(got[0]) or "") == MACHINE.RIGHT
        assert seen == {(0, 0), (0, 1), (1, 1)}

    @pytest.mark.parametrize(
        ("yielded", "says"),
        [
            (5, "no load, store"), (("jump", "a"), "no load, store"), (("load", "d"), "there is no such word"),
            (("store", "a"), "takes 2 more"), (("store", "a", 0.5), "a whole number"), ((), "no load, store"),
            (("store", "a", True), "a whole number"), (("wait", "a", 3), "a condition is a function"),
            (None, "no load, store"),
        ],
    )  # fmt: skip
    def test_what_is_no_access_is_told(self, yielded: Any, says: str) -> None:
        def program() -> Any:
            yield yielded

        assert says in tried(program)

    def test_what_is_no_generator_is_told(self) -> None:
        assert tried(lambda: [("load", "a")]) == "program 0 is list, and no generator"

    def test_a_program_must_do_the_same_when_it_is_told_the_same(self) -> None:
        draw = random.Random(1)

        def program() -> Any:
            for _ in range(draw.randint(1, 3)):
                yield "add", "a", 1
            yield "wait", "a", lambda held: held > 100

        told = [tried(program, program, program) for _ in range(5)]
        assert any("does not always do the same" in one or "for ever" in one for one in told)

    def test_programs_without_an_end_are_told(self) -> None:
        def program() -> Any:
            while True:
                yield "store", "a", 1

        assert tried(program) == "program 0 stores and fences without end"

    def test_who_tells_others_through_python_is_found_out(self) -> None:
        told: list[int] = []

        def deliver(me: int, data: list[str], flag: str, values: list[int], stamp: int) -> Any:
            if me == 0:
                told[:] = values
                yield "store", flag, stamp
                return None
            yield "wait", flag, lambda held: held == stamp
            return list(told)

        exercise = chapters.exercise("6.1")
        asked = exercise.call(exercise.checks[1], Case("course/one-receiver/0"))
        assert exercise.compare(exercise.checks[1], exercise.expected(asked), local(exercise.staged(deliver), asked))

    def test_many_programs_are_tried_at_random(self) -> None:
        def program() -> Any:
            before = yield "load", "a"
            yield "store", "a", before + 1

        def judge(returned: list[Any], held: dict[str, int]) -> str:
            return "" if held["a"] == 20 else f"a is {held['a']}"

        assert tried(*[program] * 20, judge=judge).startswith("a is ")

    def test_the_search_is_the_same_each_time(self) -> None:
        exercise = chapters.exercise("6.3")
        for wrong in exercise.real_wrong[:3]:
            asked = exercise.call(exercise.checks[0], Case("course/any-phases/2"))
            answer = sources.answer_function(exercise, wrong)
            assert local(exercise.staged(answer), asked) == local(exercise.staged(answer), asked)


class TestStrength:
    @each
    @pytest.mark.strength
    def test_is_as_stored(self, exercise: Exercise, stored: dict[str, Any]) -> None:
        strength_is_as_stored(exercise, stored)

    def test_the_three_figures_are_the_sums(self, stored: dict[str, Any]) -> None:
        figures_are_sums(stored, EXERCISES)

    def test_there_are_enough(self) -> None:
        assert 6 <= len(EXERCISES) <= 8
        assert sum(len(one.real_wrong) for one in EXERCISES) >= 80

    def test_half_of_those_about_programs_come_from_real_defects(self) -> None:
        wrong = [one for exercise in EXERCISES[:-1] for one in exercise.real_wrong]
        assert sum(bool(re.match(r"[\w.-]+/[\w.-]+#\d+", one.origin)) for one in wrong) * 2 >= len(wrong)

    @each
    def test_of_each_kind(self, exercise: Exercise) -> None:
        enough_of_each_kind(exercise)
        assert len(exercise.real_wrong) >= 7

    @each
    def test_no_two_checks_have_the_same_input(self, exercise: Exercise) -> None:
        inputs_differ(exercise)


class TestStubsAndHints:
    @each
    def test_the_stub_has_signature_and_example(self, exercise: Exercise) -> None:
        stub_has_signature_and_example(CHAPTER, exercise)

    @each
    def test_hints_do_not_contain_the_solution(self, exercise: Exercise) -> None:
        hints_keep_the_solution(exercise)

    def test_the_measure_of_hints_would_notice(self) -> None:
        hints_would_give_away("6.7", "(products.sum(0) - mean * gains) / deviation")

    @each
    def test_the_text_has_the_section_that_messages_name(self, exercise: Exercise) -> None:
        section_exists(CHAPTER, exercise)


class TestPromises:
    """What the exercises promise of the real kernel."""

    def test_the_counted_word_is_the_engines(self) -> None:
        values = torch.tensor([0.1, -0.1, 3.0, torch.nan, torch.inf, -torch.inf, 1e30, 2.0**-31, -1.7, -0.0])
        scene: Any = inspect.unwrap(chapters.exercise("6.6").spec.scene).__globals__  # type: ignore[arg-type]
        assert [scene["_units"](value) for value in values.tolist()] == phases.fixed(values).tolist()

    def test_the_fold_is_a_layer_norm_and_a_product(self) -> None:
        x, gain, shift = torch.randn(3, 24).unbind()
        weight, bias = torch.randn(7, 24), torch.randn(7)
        halves = [weight[:, part] @ (gain * x)[part] for part in (slice(12), slice(12, 24))]
        got = answers.reference("6.7")(x, torch.stack(halves), weight @ gain, weight @ shift + bias, 1e-5)
        torch.testing.assert_close(got, weight @ F.layer_norm(x, x.shape, gain, shift, 1e-5) + bias)

    def test_any_order_of_summands_gives_the_same_bits(self) -> None:
        values = torch.randn(40, generator=torch.Generator().manual_seed(6)).mul(1e4).tolist()
        told = set()
        for _ in range(5):
            random.Random(len(told)).shuffle(values)
            makes = [lambda value=value: answers.reference("6.6")(40, ["a"], [value]) for value in values]
            found, held = MACHINE.tried(makes, {"a": 0}, lambda returned, held: "", walks=1)
            assert found == MACHINE.RIGHT
            told.add(held["a"])
        assert len(told) == 1


class TestEditions:
    def test_each_has_one_besides_the_printed_form(self) -> None:
        assert all(one.editions for one in EXERCISES)

    @pytest.mark.parametrize("id, name", [(e.id, one.name) for e in EXERCISES for one in e.editions], ids=str)
    def test_is_the_same_exercise(self, id: str, name: str) -> None:
        edition_is_the_same_exercise(CHAPTER, id, name)

    def test_are_named_in_no_text(self) -> None:
        editions_are_named_in_no_text(CHAPTER)


class TestQuizAndPredictions:
    def test_the_quiz_is_as_jupyterquiz_reads_it(self) -> None:
        quiz_is_as_jupyterquiz_reads_it(CHAPTER)
        wrong_options_are_wrong_answers(CHAPTER)

    def test_predictions_have_bounds_that_arithmetic_gives(self) -> None:
        cpu = torch.device("cpu")
        found = {one.id: one for one in predict.predictions(CHAPTER)}
        assert set(found) == {"few rows", "many rows", "orders"}
        for prediction in found.values():
            assert prediction.question.endswith("?")
            assert all(prediction.why(1.0, measured) for measured in (0.1, 1.0, 10.0))
        assert [found[name].bound(cpu) for name in ("few rows", "many rows", "orders")] == [1, 256, 6]
        assert found["orders"].measure(cpu) == 20
        assert found["few rows"].measure(cpu) > 0
