"""Chapter 2's exercises: their places in the engine, their other editions, and what is told of them."""

from __future__ import annotations

import ast
import json
import re
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
import torch

from nanocourse.authoring import chapter_strength
from nanocourse.checks.known_mistakes import Tells
from nanocourse.exercises import chapters, sources, stubs
from nanocourse.exercises.cases import Case
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import Returned, local
from nanocourse.exercises.swap import has_place, swapped
from nanocourse.learner import predict, quiz
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.dense import DenseCache
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import STD, prompts_of
from tests.course.chapter_exercises import (
    figures_are_sums,
    hints_keep_the_solution,
    hints_would_give_away,
    reference_passes_on_a_gpu,
    section_exists,
    strength_is_as_stored,
)

CHAPTER = chapters.chapter(2)
EXERCISES = chapters.exercises(CHAPTER)
STORED = json.loads(chapter_strength.stored(CHAPTER).read_text(encoding="utf-8"))
PLACED = [one for one in EXERCISES if has_place(one)]
CONFIG = ModelConfig(n_layer=2, n_head=3, n_embd=48, n_positions=300, vocab_size=211)
PARAMS = [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True) for n in (9, 3, 6, 4, 7)]  # not all at once
PROMPTS = prompts_of([5, 1, 17, 3, 9], CONFIG.vocab_size)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(CONFIG, seed=7, std=STD)


def generated(model: GPT2, chunk: int | None = None, rows: int = 2) -> list[tuple[int, ...]]:
    """Tokens of ragged prompts, more than there are rows, so that rows are refilled and moved."""
    llm = LLM(model, engine="dense", max_batch=rows, prefill_chunk=chunk)
    told = llm.generate(PROMPTS, PARAMS)
    verify_tokens(llm.forward_logits, told, PARAMS)
    return [row.token_ids for row in told]


def whole_and_in_chunks(model: GPT2) -> None:
    for chunk in (None, 4):
        generated(model, chunk)


def unwrapped(source: str) -> str:
    """Without spaces and ends of lines, and the commas that stand at these."""
    return re.sub(r"\s|,(?=\s*[\]}])", "", source)


each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.id)


class TestStrength:
    @each
    @pytest.mark.strength
    def test_is_as_stored(self, exercise: Exercise) -> None:
        """Stub, reference, variants, wrong answers and mutants, run as learners' files: what the file says."""
        strength_is_as_stored(exercise, STORED)

    def test_the_three_figures_are_the_sums(self) -> None:
        figures_are_sums(STORED, EXERCISES)

    @each
    def test_no_two_checks_have_the_same_input(self, exercise: Exercise) -> None:
        seen = set()
        for check in exercise.checks:
            for at in range(check.cases):
                asked = exercise.call(check, Case(f"course/{check.name}/{at}"))
                shown = repr([a.tolist() if isinstance(a, torch.Tensor) else a for a in asked.args if not callable(a)])
                assert (shown, check.part) not in seen
                seen.add((shown, check.part))

    @pytest.mark.gpu
    @each
    def test_the_reference_passes_on_a_gpu(self, exercise: Exercise, tmp_path: Path) -> None:
        reference_passes_on_a_gpu(exercise, tmp_path)


class TestStubsAndHints:
    @each
    def test_the_stub_has_signature_and_example(self, exercise: Exercise) -> None:
        source = stubs.stub(exercise, CHAPTER)
        (mine,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
        (theirs,) = ast.parse(sources.function_source(exercise.function)).body
        assert isinstance(theirs, ast.FunctionDef)
        assert ast.dump(mine.args) == ast.dump(theirs.args)
        assert ast.get_docstring(mine) == ast.get_docstring(theirs)
        assert f'NotImplementedError("{exercise.mark} ' in source
        assert max(map(len, source.splitlines())) <= 120
        outcome = local(exercise.function, exercise.example())
        assert isinstance(outcome, Returned)
        assert unwrapped(f"-> {stubs.literal(outcome.value)}") in unwrapped(source)

    @each
    def test_hints_do_not_contain_the_solution(self, exercise: Exercise) -> None:
        hints_keep_the_solution(exercise)

    def test_the_measure_of_hints_would_notice(self) -> None:
        hints_would_give_away("2.4", "try counted = real.cumsum(1) first")


class TestPlaces:
    @pytest.mark.parametrize("exercise", PLACED, ids=lambda one: one.id)
    @pytest.mark.parametrize("chunk", [None, 4])
    def test_the_reference_gives_the_engines_tokens(self, model: GPT2, exercise: Exercise, chunk: int | None) -> None:
        calls = []
        with swapped(exercise, exercise.function, lambda: calls.append(1)):
            generated(model, chunk)
        assert calls

    def test_all_at_once(self, model: GPT2) -> None:
        """As `--mine` runs a learner who has done everything; afterwards nothing of it is left."""
        before = {name: vars(DenseCache)[name] for name in ("plan", "write", "read", "bytes", "clear")}
        with ExitStack() as stack:
            for exercise in PLACED:
                stack.enter_context(swapped(exercise, exercise.function))
            whole_and_in_chunks(model)
            assert vars(DenseCache)["write"] is not before["write"]
        assert {name: vars(DenseCache)[name] for name in before} == before

    @pytest.mark.parametrize("exercise", PLACED, ids=lambda one: one.id)
    def test_correct_variants_run_there_too(self, model: GPT2, exercise: Exercise) -> None:
        for right in exercise.right:
            with swapped(exercise, sources.answer_function(exercise, right)):
                generated(model, 4)

    @pytest.mark.parametrize(
        "id, name",
        [
            ("2.2", "writes-nothing"), ("2.2", "one-cache-for-all-layers"), ("2.2", "rows-of-the-step"),
            ("2.3", "triangle-at-the-top-left"), ("2.3", "padding-seen"), ("2.4", "padded-length"),
            ("2.5", "weight-zero"), ("2.5", "whatever-is-not-zero"),
            ("2.2", "padding-to-row-0"), ("2.7", "chunk-by-itself"), ("2.7", "padded-column"),
            ("2.7", "logits-by-row"), ("2.7", "one-token-again"),
        ],
    )  # fmt: skip
    def test_mistakes_show_there(self, model: GPT2, id: str, name: str) -> None:
        """The same proof that passes with the reference fails: the place is the one that the mistake is about."""
        exercise = chapters.exercise(id)
        wrong = next(one for one in exercise.wrong if one.name == name)
        with swapped(exercise, sources.answer_function(exercise, wrong)), pytest.raises(AssertionError):
            whole_and_in_chunks(model)

    def test_a_cache_that_does_not_fit_is_refused_by_the_learners_count(
        self, model: GPT2, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exercise = chapters.exercise("2.6")
        needed = DenseCache.bytes(CONFIG, 2, CONFIG.n_positions, torch.float32)
        for free, fits in ((needed, True), (needed - 1, False)):
            monkeypatch.setattr("nanoinfer.cache.make_cache.free_memory", lambda device, free=free: free)
            refused = pytest.raises(ValueError, match="2 rows of 300 tokens takes") if not fits else nullcontext()
            with swapped(exercise, exercise.function), refused:
                generated(model)


class TestEditions:
    def test_at_least_two(self) -> None:
        assert sum(bool(one.editions) for one in EXERCISES) >= 2

    @pytest.mark.parametrize(
        "exercise", [e.as_edition(one.name) for e in EXERCISES for one in e.editions], ids=lambda one: one.edition.name
    )
    def test_right_ones_pass_and_wrong_ones_do_not(self, exercise: Exercise) -> None:
        """Reference and correct variants agree in the other form; each wrong answer is told apart there as well."""
        assert exercise.edition is not None
        cases = [(check, Case(f"edition/{check.name}/{at}")) for check in exercise.checks for at in range(check.cases)]
        plain = chapters.exercise(exercise.id)

        def rejected(answer: object) -> bool:
            function = exercise.edition.of(answer)  # type: ignore[union-attr, arg-type]
            for check, case in cases:
                expected = local(exercise.function, exercise.call(check, case))
                if exercise.compare(check, expected, local(function, exercise.call(check, case))):
                    return True
            return False

        assert not rejected(plain.function)
        for right in exercise.right:
            assert not rejected(sources.answer_function(plain, right)), right.name
        for wrong in exercise.real_wrong:
            assert rejected(sources.answer_function(plain, wrong)), wrong.name
        assert all(len(found) == 3 for found in Tells(exercise, "course").found.values())

    @pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.id)
    def test_no_edition_is_told_in_the_text(self, exercise: Exercise) -> None:
        text = (CHAPTER.folder / "README.md").read_text(encoding="utf-8")
        for edition in exercise.editions:
            assert edition.says not in text
            assert edition.name not in text


class TestBank:
    def test_how_many(self) -> None:
        assert 6 <= len(EXERCISES) <= 8
        assert sum(len(one.real_wrong) for one in EXERCISES) >= 40
        for exercise in EXERCISES:
            assert len(exercise.real_wrong) >= 5
            assert len(exercise.right) >= 3

    def test_mistakes_that_must_be_there(self) -> None:
        names = {f"{one.id} {wrong.name}" for one in EXERCISES for wrong in one.wrong}
        assert names >= {
            "2.1 everything-changes", "2.1 queries-too", "2.2 writes-nothing", "2.2 slot-0-only", "2.2 column-is-slot",
            "2.2 keys-and-values-swapped", "2.2 one-cache-for-all-layers", "2.3 triangle-at-the-top-left",
            "2.3 mask-inverted", "2.3 itself-hidden", "2.3 one-slot-too-many", "2.3 chunk-sees-its-end",
            "2.3 padding-seen", "2.4 positions-restart", "2.4 padded-length", "2.4 columns-are-positions",
            "2.5 whatever-is-not-zero", "2.5 nothing-to-read", "2.5 weight-zero", "2.6 weights-are-the-batch",
            "2.7 chunk-by-itself", "2.7 padded-column",
        }  # fmt: skip

    @pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.id)
    def test_each_has_a_sentence_and_an_origin(self, exercise: Exercise) -> None:
        for wrong in exercise.wrong:
            assert wrong.says.endswith("."), wrong.name
            assert len(wrong.origin) > 10, wrong.name
        assert len({wrong.says for wrong in exercise.wrong}) == len(exercise.wrong)


class TestWhatStandsBesides:
    @each
    def test_the_section_to_read_exists(self, exercise: Exercise) -> None:
        section_exists(CHAPTER, exercise)

    def test_quiz_is_about_real_wrong_answers(self) -> None:
        names = {f"{one.id} {wrong.name}" for one in EXERCISES for wrong in one.wrong}
        asked = quiz.questions(CHAPTER)
        assert len(asked) >= 10
        told = [answer.mistake for question in asked for answer in question.answers if answer.mistake]
        assert set(told) <= names
        assert len(told) >= 20
        for question in asked:
            assert sum(answer.correct for answer in question.answers) == 1
            assert all(answer.feedback for answer in question.answers)
            assert not any(answer.correct and answer.mistake for answer in question.answers)

    def test_bounds_need_no_measurement(self) -> None:
        found = {one.id: one.bound(torch.device("cpu")) for one in predict.predictions(CHAPTER)}
        assert len(found) >= 3
        assert found["with-and-without"] > 100
        assert 1 < found["longer-context"] < 2
        assert found["rows-as-weights"] == pytest.approx(3.03, abs=0.01)

    def test_what_memory_tells_is_what_arithmetic_says(self) -> None:
        one = next(one for one in predict.predictions(CHAPTER) if one.id == "rows-as-weights")
        cpu = torch.device("cpu")
        assert one.measure(cpu) == pytest.approx(one.bound(cpu), rel=0.01)


def test_notebook_breaks_with_known_mistakes() -> None:
    path = Path(__file__).parents[2] / "notebooks" / "02-kv-cache.py"
    if not path.is_file():
        pytest.skip("not a checkout")
    source = path.read_text(encoding="utf-8")
    named = re.findall(r'answers\.mistake\("([\d.]+)", "([\w-]+)"\)', source)
    assert len(named) >= 3
    for id, name in named:
        assert any(wrong.name == name for wrong in chapters.exercise(id).wrong)
    assert len(re.findall(r"^# ## \d+\. ", source, re.M)) >= 8
