"""Chapter 5's exercises: how strong their checks are, their stubs, hints, quiz, editions and places in the engine."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest
import torch

from nanocourse.authoring import chapter_strength
from nanocourse.exercises import answers, chapters, sources
from nanocourse.exercises.cases import Case
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.swap import has_place, swapped
from nanocourse.learner import predict
from nanoinfer import LLM, SamplingParams
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from tests.conftest import STD, prompts_of
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

CHAPTER = chapters.chapter(5)
EXERCISES = chapters.exercises(CHAPTER)
PLACED = [one for one in EXERCISES if has_place(one)]
CONFIG = ModelConfig(n_layer=1, n_head=2, n_embd=32, n_positions=80, vocab_size=101)
SMALL: dict[str, Any] = {"kv_blocks": 12, "prefill_chunk": 4, "max_batched_tokens": 9}
PROMPTS = [*prompts_of([15, 1, 17, 20, 3], CONFIG.vocab_size)]

each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.id)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(CONFIG, seed=7, std=STD)


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(chapter_strength.stored(CHAPTER).read_text(encoding="utf-8"))
    return found


def generated(model: GPT2) -> list[tuple[int, ...]]:
    """Tokens of sampled rows in a small pool, two of which begin alike, with prompts in pieces."""
    params = [SamplingParams(max_tokens=n, seed=at, ignore_eos=True) for at, n in enumerate((12, 3, 3, 20, 6, 9))]
    prompts = [*PROMPTS, PROMPTS[3]]
    with LLM(model, engine="paged", max_batch=3, prefix_caching=True, **SMALL) as llm:
        return [row.token_ids for row in llm.generate(prompts, params)]


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
        hints_would_give_away("5.1", "tokens = min(length - computed[at], chunk, left)")

    @each
    def test_the_text_has_the_section_that_messages_name(self, exercise: Exercise) -> None:
        section_exists(CHAPTER, exercise)


class TestPlaces:
    @pytest.mark.parametrize("exercise", PLACED, ids=lambda one: one.id)
    def test_the_reference_gives_the_engines_tokens(self, model: GPT2, exercise: Exercise) -> None:
        before, calls = generated(model), []
        with swapped(exercise, exercise.function, lambda: calls.append(1)):
            assert generated(model) == before
        assert calls

    @pytest.mark.parametrize("exercise", PLACED, ids=lambda one: one.id)
    def test_correct_variants_run_there_too(self, model: GPT2, exercise: Exercise) -> None:
        before = generated(model)
        for right in exercise.right:
            with swapped(exercise, sources.answer_function(exercise, right)):
                assert generated(model) == before


class TestHistories:
    """What the exercises promise of more than one call, played to the end."""

    def test_steps_read_each_prompt_once_and_starve_nobody(self) -> None:
        plan, draw = answers.reference("5.1"), random.Random(5)
        prompts, computed = [draw.randint(1, 30) for _ in range(9)], [0] * 9
        for _ in range(40):
            step = plan(prompts, computed, 11, 6)
            assert sum(tokens for _, tokens, _ in step) <= 11
            assert {at for at in range(9) if computed[at] >= prompts[at]} <= {at for at, _, _ in step}
            for at, tokens, follows in step:
                assert follows == (computed[at] + tokens >= prompts[at])
                computed[at] += tokens
        assert all(done > length for done, length in zip(computed, prompts, strict=True))

    def test_no_block_is_lost_or_held_twice(self) -> None:
        exercise = chapters.exercise("5.4")
        check = next(check for check in exercise.checks if check.wide)
        for at in range(24):
            pool, history = exercise.call(check, Case(f"history/{at}")).args
            ends = [("end", row, "done") for what, row, _ in history if what == "begin"]
            _, holders, _ = exercise.function(pool, [*history, *ends])
            assert holders == [0] * pool

    def test_preempted_rows_get_the_tokens_of_a_large_pool(self) -> None:
        assert _played(9)[0] == _played(200)[0]
        assert _played(9)[1] > 0 == _played(200)[1]

    @pytest.mark.parametrize("name", ["noise-begins-anew", "prompt-alone", "all-is-generated-again"])
    def test_mistakes_of_those_who_resume_show_in_tokens(self, name: str) -> None:
        assert _played(9, name)[0] != _played(200, name)[0]


def _played(pool: int, mistake: str = "") -> tuple[list[list[int]], int]:
    """Four rows of ten new tokens each, in a pool of so many blocks of two: what was sent of each, and preemptions."""
    step = answers.wrong("5.5", mistake) if mistake else answers.reference("5.5")
    rows = [{"prompt": [at] * (at + 1), "new": list[int](), "seed": at, "blocks": 0} for at in range(4)]
    sent: list[list[int]] = [[] for _ in rows]
    free, preemptions, left = pool, 0, list(range(4))
    for _ in range(200):
        held, free, preempted, tokens = step([rows[at] for at in left], free, 2, _token)
        preemptions += len(preempted)
        for at, blocks in zip(left, held, strict=True):
            rows[at]["blocks"] = blocks
        for place, token in tokens:
            rows[left[place]]["new"] = [*rows[left[place]]["new"], token]  # type: ignore[misc]
            sent[left[place]].append(token)
        free += sum(rows[at]["blocks"] for at in left if len(sent[at]) >= 10)  # type: ignore[misc]
        left = [at for at in left if len(sent[at]) < 10]
        if not left:
            break
    assert not left
    return sent, preemptions


def _token(text: list[int], seed: int, at: int) -> int:
    return (sum(place * one for place, one in enumerate(text, 1)) + 31 * seed + 7 * at * at) % 97


class TestEditions:
    def test_each_has_one_besides_the_printed_form(self) -> None:
        assert all(one.editions for one in EXERCISES if one.number <= 6)

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
        assert set(found) == {"static", "waiting", "batch", "shared"}
        for prediction in found.values():
            assert prediction.question.endswith("?")
            assert all(prediction.why(1.0, measured) for measured in (0.1, 1.0, 10.0))
        assert found["static"].bound(cpu) == pytest.approx((48 + 40 + 16) / (160 / 4))
        assert 1 < found["static"].measure(cpu) < found["static"].bound(cpu)
        assert found["waiting"].measure(cpu) > 2
        assert found["batch"].bound(cpu) == 8
        assert (found["shared"].bound(cpu), found["shared"].measure(cpu)) == (7 * 40, 7 * 32)


def test_percentiles_rise_with_their_percent() -> None:
    exercise = chapters.exercise("5.6")
    for check in exercise.checks:
        due, log, _ = exercise.call(check, Case("rising/0")).args
        ranked = exercise.function(due, log, list(range(1, 101)))[1]
        assert all(one <= other for one, other in pairwise(ranked))
