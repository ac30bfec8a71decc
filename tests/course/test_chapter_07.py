"""Chapter 7's exercises: how strong their checks are, their stubs, hints, quiz, editions and places in the engine."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
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
from nanoinfer.engine.scheduler import Row
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

CHAPTER = chapters.chapter(7)
EXERCISES = chapters.exercises(CHAPTER)
PLACED = [one for one in EXERCISES if has_place(one)]
CONFIG = ModelConfig(n_layer=1, n_head=2, n_embd=32, n_positions=80, vocab_size=101)
FREE: dict[str, Any] = {"ignore_eos": True}
PARAMS = [
    SamplingParams(max_tokens=12, temperature=0, seed=1, **FREE),
    SamplingParams(max_tokens=20, seed=2, **FREE),
    SamplingParams(max_tokens=9, temperature=0, frequency_penalty=1.5, seed=3, **FREE),
    SamplingParams(max_tokens=15, temperature=0.8, frequency_penalty=0.5, seed=4, **FREE),
    SamplingParams(max_tokens=70, temperature=0.7, logprobs=1, seed=5, **FREE),  # up to the context's end
]
PROMPTS = [[*part, *part[:2]] for part in prompts_of([15, 6, 17, 9, 20], CONFIG.vocab_size)]

each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.id)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(CONFIG, seed=7, std=STD)


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(chapter_strength.stored(CHAPTER).read_text(encoding="utf-8"))
    return found


class Known:
    """Drafts from texts that are known, each third one wrong."""

    def __init__(self, texts: dict[Any, tuple[int, ...]]) -> None:
        self.texts = texts

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        drafts = []
        for row, limit in zip(rows, limits, strict=True):
            begin = len(row.token_ids)
            right = self.texts[row.request.seed][begin : begin + limit]
            drafts.append([(token + (begin + at) // 3 % 2) % CONFIG.vocab_size for at, token in enumerate(right)])
        return drafts


def generated(model: GPT2, lookup: bool = False) -> None:
    """Rows with drafts, some of them wrong, have the tokens of plain decoding: sampled, penalised and greedy ones."""
    with LLM(model, engine="dense") as plain:
        texts = {done.seed: done.token_ids for done in plain.generate(PROMPTS, PARAMS)}
    with LLM(model, engine="dense", max_batch=3, speculate="lookup", draft_tokens=4, adaptive_drafts=False) as llm:
        core: Any = llm.core
        if not lookup:
            core.begin_with(Known(texts))
        done = [*llm.generate(PROMPTS[:2], PARAMS[:2]), *llm.generate(PROMPTS, PARAMS)]  # the latter are scored
        assert llm.stats.verify_steps > 5
        assert [row.token_ids for row in done] == [texts[row.seed] for row in done]


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
        hints_would_give_away("7.4", 'room = min(row["left"], max_len - row["length"])')

    @each
    def test_the_text_has_the_section_that_messages_name(self, exercise: Exercise) -> None:
        section_exists(CHAPTER, exercise)


class TestPlaces:
    def test_there_are_some(self) -> None:
        assert [one.id for one in PLACED] == ["7.2", "7.3", "7.4", "7.5"]

    @pytest.mark.parametrize("exercise", PLACED, ids=lambda one: one.id)
    def test_the_reference_gives_the_engines_tokens(self, model: GPT2, exercise: Exercise) -> None:
        calls: list[int] = []
        with swapped(exercise, exercise.function, lambda: calls.append(1)):
            generated(model, lookup=exercise.id == "7.5")
        assert calls

    @pytest.mark.parametrize("exercise", PLACED, ids=lambda one: one.id)
    def test_correct_variants_run_there_too(self, model: GPT2, exercise: Exercise) -> None:
        for right in exercise.right:
            with swapped(exercise, sources.answer_function(exercise, right)):
                generated(model, lookup=exercise.id == "7.5")

    @pytest.mark.parametrize("id, name", [
        ("7.2", "each-for-itself"), ("7.2", "token-thrown-away"), ("7.2", "first-one-unseen"),
        ("7.3", "noise-by-step"), ("7.3", "seed-by-place"), ("7.4", "one-position-late"),
    ])  # fmt: skip
    def test_mistakes_show_in_tokens(self, model: GPT2, id: str, name: str) -> None:
        with pytest.raises((AssertionError, LookupError, ValueError)), answers.mistake(id, name):
            generated(model)


class TestPromises:
    """What the exercises promise of more than one call."""

    def test_a_run_that_is_cut_in_two_ends_alike(self) -> None:
        exercise = chapters.exercise("7.6")
        check = next(check for check in exercise.checks if check.wide)
        for at in range(24):
            run, row, params = exercise.call(check, Case(f"promise/{at}")).args
            whole = exercise.function(run, row, params)
            for cut in range(1, len(run)):
                count, why, text = exercise.function(run[:cut], row, params)
                if not why:
                    after = {"new": row["new"] + cut, "length": row["length"] + cut, "text": text}
                    more, why, text = exercise.function(run[cut:], after, params)
                    count += more
                assert (count, why, text) == whole

    def test_no_block_is_lost(self) -> None:
        exercise = chapters.exercise("7.7")
        for check in exercise.checks:
            for at in range(12):
                rows, wishes, right, free, size = exercise.call(check, Case(f"promise/{at}")).args
                _, held, kept, after = exercise.function(rows, wishes, right, free, size)
                before = sum(-(-written // size) for written, _ in rows)
                promised = sum(promised for _, promised in rows)
                assert after + sum(kept) == free + before
                assert all(one <= more for one, more in zip(kept, held, strict=True))
                assert free + before - sum(held) >= promised - sum(
                    max(own, mine) for own, (_, mine) in zip(held, rows, strict=True)
                )

    def test_drafts_decide_how_many_tokens_come_and_never_which(self) -> None:
        accept = answers.reference("7.2")
        scores, noise = torch.randn(1, 5, 9), torch.randn(1, 5, 9)
        plain = (scores + noise).argmax(-1)
        for _ in range(50):
            drafts = torch.where(torch.rand(1, 4) < 0.7, plain[:, :-1], torch.randint(0, 9, (1, 4)))
            tokens, counts = accept(scores, noise, drafts)
            assert tokens[0, : int(counts)].tolist() == plain[0, : int(counts)].tolist()

    def test_the_formula_is_the_mean_of_coins(self) -> None:
        draw, given = random.Random(7), 0
        for _ in range(20_000):
            given += 1 + next((at for at in range(4) if draw.random() >= 0.7), 4)
        (mean,), _ = answers.reference("7.1")([0.7], [4], 1.0, 1.0)
        assert given / 20_000 == pytest.approx(mean, rel=0.02)


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
        assert set(found) == {"tokens", "one row", "many rows", "lookup"}
        for prediction in found.values():
            assert prediction.question.endswith("?")
            assert all(prediction.why(1.0, measured) for measured in (0.1, 1.0, 10.0))
        assert found["tokens"].bound(cpu) == pytest.approx(3.3616)
        assert [found[name].bound(cpu) for name in ("one row", "many rows", "lookup")] == [1, 5, 5]
        assert 2.2 < found["tokens"].measure(cpu) < 4.6
        assert 1.3 < found["lookup"].measure(cpu) < 5
